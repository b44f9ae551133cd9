"""The proof that recording is on: a call that goes to nobody is made, and a witness looks for it.

The call takes the way of any other one, through `torch.distributed`'s dispatcher, on a group of
its own with a backend that sends nothing. No mode, no later call and no fact of the run can tell.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup
from torch.utils._python_dispatch import _disable_current_modes

from commtrace.recorder.buffer import Span
from commtrace.recorder.calls import Call
from commtrace.recorder.recorder import RECORDER

_NAME = "commtrace witness"
_NO_RANK = -2  # a buffer of one rank does not keep the call


class SelfCheck:
    """A sink that only knows whether it has seen the call to nobody."""

    rank: int | None = None
    wants_spans = False
    wants_layouts = False
    wants_stacks = False
    wants_contents = False

    def __init__(self) -> None:
        self.has_seen = False

    def add(self, call: Call) -> None:
        """Look at a call."""
        self.has_seen |= call.request.group.row.name == _NAME

    def keep_span(self, span: Span) -> None:
        """Operators do not matter."""

    def end_step(self, rank: int) -> None:
        """Nor do steps."""

    def tick(self, source: str, thing: Any, at: int, begin: int) -> None:
        """Nor what they are found by."""


def call_nobody() -> None:
    """Make a collective call that moves nothing."""
    fake = dist.ProcessGroup.BackendType.CUSTOM
    group: Any = dist.ProcessGroup(0, 1)  # pyright: ignore[reportCallIssue]
    group._register_backend(torch.device("cpu"), fake, FakeProcessGroup._create_internal(0, 1))
    group._set_default_backend(fake)
    group._set_group_name(_NAME)
    newest = RECORDER.groups.newest
    RECORDER.groups.of(group).rank = _NO_RANK
    with _disable_current_modes():
        group.allreduce([torch.zeros(1)])
    RECORDER.groups.newest = newest
