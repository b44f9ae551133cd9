"""Stage, micro-batch and direction of the sends and receives of a pipeline.

A schedule of `torch.distributed.pipelining` issues transfers in batches, which do not say what they
are for. A stage creates each as a `P2POp` in one of four methods. The tensor is noted there with
its stage and looked up when it is sent. Nothing is noted outside these methods.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch import nn

from commtrace.recorder.events.location import BACKWARD, FORWARD, Transfer
from commtrace.recorder.thread_state import PipelinePart
from commtrace.torch_internals.pipelining import STAGES

METHODS = {
    "get_fwd_recv_ops": ("fwd_chunk_id", FORWARD, True),
    "get_fwd_send_ops": ("fwd_chunk_id", FORWARD, False),
    "get_bwd_recv_ops": ("bwd_chunk_id", BACKWARD, False),
    "get_bwd_send_ops": ("bwd_chunk_id", BACKWARD, False),
}
"""Methods of a stage: the argument that is the micro-batch, the direction of their transfers, and
whether these precede a module call.
"""
_ISSUING = frozenset({"isend", "irecv"})
_MAX_NOTED = 4096


_noted: dict[int, tuple[weakref.ref[Any], Transfer]] = {}


def note_transfers() -> Callable[[], None]:
    """Start noting the transfers that stages create; return a function that stops it."""
    original = dist.P2POp.__init__

    @functools.wraps(original)
    def noting(self: Any, op: Any, tensor: Any, *args: Any, **kwargs: Any) -> None:
        original(self, op, tensor, *args, **kwargs)
        frame = sys._getframe(1)
        if frame.f_globals.get("__name__") == STAGES:
            _note(frame, tensor)

    def end() -> None:
        # Another tool may have replaced it since.
        if dist.P2POp.__init__ is noting:
            dist.P2POp.__init__ = original
        _noted.clear()

    dist.P2POp.__init__ = noting
    return end


def _note(frame: FrameType | None, tensor: Any) -> None:
    while frame is not None and frame.f_globals.get("__name__") == STAGES:
        method = METHODS.get(frame.f_code.co_name)
        if method is not None:
            chunk_name, direction, is_ahead = method
            found = frame.f_locals
            stage, micro_batch = found.get("self"), found.get(chunk_name, -1)
            module, number = getattr(stage, "submod", None), getattr(stage, "stage_index", -1)
            if isinstance(module, nn.Module):
                # Entries are not removed one by one, so the table is emptied to bound its memory.
                if len(_noted) >= _MAX_NOTED:
                    _noted.clear()
                part = PipelinePart(number, micro_batch, direction)
                _noted[id(tensor)] = weakref.ref(tensor), Transfer(module, part, is_ahead)
            return
        frame = frame.f_back


def name_of_stage() -> str:
    """Return the name of the pipeline stage that calls the current module; empty if none does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name == STAGES:
            number = getattr(frame.f_locals.get("self"), "stage_index", None)
            if number is not None:
                return f"stage{number}"
        elif not name.startswith(("torch.", __name__.partition(".")[0])):
            return ""
        frame = frame.f_back
    return ""


def transfer_below(frame: FrameType) -> Transfer | None:
    """Return the transfer being issued below a schedule's frame; None if no stage created it."""
    at: FrameType | None = sys._getframe(1)
    while at is not None and at is not frame:
        if at.f_code.co_name in _ISSUING:
            tensor = at.f_locals.get("tensor")
            reference, transfer = _noted.get(id(tensor), (None, None))
            # Another tensor may have got the identity of a noted one.
            return transfer if reference is not None and reference() is tensor else None
        at = at.f_back
    return None
