"""Self-check that recording works: issue a call without peers, and test that a sink receives it.

The call passes `torch.distributed`'s dispatcher like any other, on a group of its own whose backend
sends nothing. It leaves no trace in modes, later calls or the facts of the run.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from commtrace.recorder.events.call import Call
from commtrace.recorder.events.later_wait import LaterWait
from commtrace.recorder.events.pipeline_action import PipelineAction
from commtrace.recorder.events.sink import SELF_CHECK, OperatorSpan
from commtrace.recorder.recorder import RECORDER
from commtrace.torch_internals.dispatcher import no_dispatch_modes
from commtrace.torch_internals.groups import make_fake_backend

_NAME = "commtrace self-check"


class SelfCheck:
    """Sink that only records whether it has seen the self-check call."""

    rank: int | None = None
    wants_spans = False
    wants_layouts = False
    wants_stacks = False
    wants_tensor_identity = False
    wants_details = False
    value_sink = None
    host_sink = None

    def __init__(self) -> None:
        self.has_seen = False

    def add(self, call: Call) -> None:
        """Check whether this is the self-check call."""
        self.has_seen |= call.request.group.row.name == _NAME

    def add_action(self, action: PipelineAction) -> None:
        """Ignore computations of pipeline stages."""

    def add_later_wait(self, wait: LaterWait) -> None:
        """Ignore further waits for a call."""

    def keep_span(self, span: OperatorSpan) -> None:
        """Ignore operators."""

    def end_step(self, rank: int) -> None:
        """Ignore steps."""

    def tick(self, source: str, thing: Any, at: int, begin: int) -> None:
        """Ignore calls that may end a step."""


def call_without_peers() -> None:
    """Make a collective call that moves no data."""
    fake = dist.ProcessGroup.BackendType.CUSTOM
    group: Any = dist.ProcessGroup(0, 1)  # pyright: ignore[reportCallIssue]
    group._register_backend(torch.device("cpu"), fake, make_fake_backend(0, 1))
    group._set_default_backend(fake)
    group._set_group_name(_NAME)
    # The facts of a run follow the newest group, which this one must not become.
    newest = RECORDER.groups.newest
    RECORDER.groups.of(group).rank = SELF_CHECK
    with no_dispatch_modes():
        group.allreduce([torch.zeros(1)])
    RECORDER.groups.newest = newest
