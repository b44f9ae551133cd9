"""Functions to call before this process ends, or becomes another program.

Exit handlers of Python do not run if the program calls `os._exit` or `os.exec*`. A forked child
calls none of the functions: they are its parent's.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_MOST_S = 2.0
"""Time for the function called before `os._exit`, by which a program may escape from a hang."""


def call_at_exit(function: Callable[[], None]) -> None:
    """Call a function at the exit of this process, before those registered earlier."""
    pid = os.getpid()

    def call() -> None:
        if os.getpid() == pid:
            function()

    atexit.register(call)


Leave = Callable[[FrameType], None]
"""Function that receives the frame in which the process is left."""


def call_before_leaving(on_exit: Leave, on_exec: Leave) -> None:
    """Call a function before `os._exit`, and another before `os.exec*`, which may fail.

    They replace the functions of an earlier call, and run on a thread of their own, since this
    thread may hold a lock that they need.
    """
    if not _leaving:
        for name in ("_exit", "execv", "execve"):
            setattr(os, name, _after_functions(name))
    _leaving.update(pid=os.getpid(), _exit=on_exit, execv=on_exec, execve=on_exec)


_leaving: dict[str, Any] = {}
"""The functions by the name of the `os` function before which each is called, and their process."""


def _after_functions(name: str) -> Any:
    leave = getattr(os, name)

    def leave_afterwards(*args: Any, **kwargs: Any) -> Any:
        if _leaving["pid"] == os.getpid():
            with contextlib.suppress(BaseException):  # nothing may keep the process
                caller = (sys._getframe(1),)
                thread = threading.Thread(target=_leaving[name], args=caller, daemon=True)
                thread.start()
                thread.join(_MOST_S)
        return leave(*args, **kwargs)

    return leave_afterwards
