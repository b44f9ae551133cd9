"""torch.compile and torch.func: frames that dynamo skips, objects in graphs, transforms."""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch
from torch._C._dynamo import eval_frame  # pyright: ignore
from torch._library.fake_class_registry import maybe_unwrap_fake_script_object
from torch._library.opaque_object import MemberType, register_opaque_type

__all__ = ["MemberType", "maybe_unwrap_fake_script_object", "register_opaque_type"]

_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
_SKIP = eval_frame._FrameAction.SKIP

current_transform = _functorch.peek_interpreter_stack
"""Return the innermost transform of `torch.func` in force; None if there is none."""
is_wrapped = _functorch.is_functorch_wrapped_tensor
"""Return whether a tensor stands for another one in a transform."""


def skip_frames(code: CodeType) -> None:
    """Run a function uncompiled wherever it is called, and all that it calls."""
    eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(_SKIP, _SKIP))


def without_transforms() -> Any:
    """Return a context in which no transform is in force."""
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()
