"""Count of the instructions that Python executes in a call, which no other load changes.

Only the current thread counts, and only Python code: what a call does in C++ is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def opcodes_of(call: Callable[[], object]) -> int:
    """Return the number of Python's instructions that a call executes."""
    count = 0

    def counted(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return counted

    before = sys.gettrace()
    sys.settrace(counted)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
