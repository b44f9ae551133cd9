"""Shared by the recorder's tests: rows of a recording, and code that communicates in backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from commtrace.event import CommEvent, GroupRow, OpEvent, StepRow
from commtrace.recorder.events.call import Call
from commtrace.recorder.events.groups import Group
from commtrace.recorder.events.location import OTHER, Location
from commtrace.recorder.events.request import Request
from commtrace.recorder.interception.signatures import SIGNATURES
from commtrace.recorder.thread_state import ThreadState
from commtrace.session import Recording


def calls(recording: Recording) -> list[Any]:
    """The communication calls, in the order of issue."""
    return [CommEvent(*row) for row in recording.trace().rows("comm")]


def call(recording: Recording) -> Any:
    """The only communication call."""
    (only,) = calls(recording)
    return only


def ops(recording: Recording) -> list[Any]:
    """The operators, in the order of their start."""
    return [OpEvent(*row) for row in recording.trace().rows("ops")]


def groups(recording: Recording) -> list[Any]:
    """The process groups."""
    return [GroupRow(*row) for row in recording.trace().rows("groups")]


def steps(recording: Recording) -> list[Any]:
    """The steps."""
    return [StepRow(*row) for row in recording.trace().rows("steps")]


class ReduceBackward(torch.autograd.Function):
    """The identity, whose gradient is all-reduced."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        grad = grads[0].clone()
        dist.all_reduce(grad)
        return grad


class ReduceForward(torch.autograd.Function):
    """The sum over all ranks, whose gradient is passed on."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        out = tensor.clone()
        dist.all_reduce(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


class Linear(torch.nn.Linear):
    """A linear layer that all-reduces its output, and the gradient of its input."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return ReduceForward.apply(super().forward(ReduceBackward.apply(input)))  # type: ignore[return-value]


class Nested(torch.autograd.Function):
    """The identity, whose backward pass calls another function."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, inner: Callable[[], Any]) -> torch.Tensor:
        ctx.inner = inner
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        with torch.enable_grad():
            ctx.inner()
        return grads[0], None


def on_a_thread_of_the_engine(backward: Callable[[], Any]) -> None:
    """Nest a backward pass so deeply that the autograd engine runs it on another thread.

    The engine also uses other threads for accelerators.
    """
    for _ in range(61):
        loss = Nested.apply(torch.ones(1, requires_grad=True), backward)
        backward = loss.backward  # type: ignore[union-attr]
    backward()


def unplaced_call() -> Call:
    """A call without an actual collective: an all-reduce in a group of this process alone."""
    nobody: Any = None
    row = GroupRow("alone", "", "0", 1, "", "gloo")
    group = Group(nobody, row, (0,), 0, is_in_cpp=True)
    request = Request("c10d::allreduce_", SIGNATURES["c10d::allreduce_"], group)
    return Call(request, Location(OTHER, None, None, -1, None), ThreadState(), 0, 0)
