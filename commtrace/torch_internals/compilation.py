"""torch.compile: frames that dynamo skips, and the trace in progress."""

from __future__ import annotations

from types import CodeType

from torch._C._dynamo import eval_frame
from torch._guards import TracingContext

__all__ = ["TracingContext"]

_action = eval_frame._FrameAction


def skip_frame(code: CodeType, *, and_its_callees: bool) -> None:
    """Run a function uncompiled wherever it is called."""
    rest = _action.SKIP if and_its_callees else _action.DEFAULT
    eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(_action.SKIP, rest))
