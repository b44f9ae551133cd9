"""Text that faulthandler writes about the threads of a process, as stacks.

    Thread 0x00007f3a8c9d5700 (most recent call first):
      File "train.py", line 8 in inner
      File "train.py", line 10 in outer

A dump has each thread once. The thread that received the signal is called the current thread.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_HEAD = re.compile(
    r"^(?:Current thread|Thread) 0x([0-9a-f]{1,16})(?: \[(.*)\])? \(most recent call first\):$"
)
_FRAME = re.compile(r'^  File "(.*)", line (\d{1,9}) in (.*)$')
_INSTALLED = re.compile(r"[/\\](?:(?:site|dist)-packages|lib[/\\]python3[^/\\]*)[/\\]|^<frozen ")
_LIBRARIES = (
    f"{sysconfig.get_path('stdlib')}{os.sep}",
    *(f"{Path(__file__).parents[2] / name}{os.sep}" for name in ("commtrace", "dtensor_core")),
)


@dataclass(frozen=True, slots=True)
class DumpedThread:
    """Stack of a thread.

    Attributes:
        ident: its number in Python.
        name: its name, which Python states from version 3.14 on; else empty.
        frames: file, line and function of each call, innermost last.
    """

    ident: int
    name: str
    frames: tuple[tuple[str, int, str], ...]


def dumps_in(text: str) -> list[list[DumpedThread]]:
    """Return the dumps of a process in the order in which it wrote them."""
    dumps: list[dict[int, tuple[str, list[tuple[str, int, str]]]]] = []
    frames: list[tuple[str, int, str]] = []
    for line in text.splitlines():
        if head := _HEAD.match(line):
            ident = int(head[1], 16)
            if not dumps or ident in dumps[-1]:
                dumps.append({})
            frames = []
            dumps[-1][ident] = head[2] or "", frames
        elif frame := _FRAME.match(line):
            frames.append((frame[1], int(frame[2]), frame[3]))
    return [
        [DumpedThread(ident, name, tuple(reversed(found))) for ident, (name, found) in each.items()]
        for each in dumps
    ]


def text_of_first_dump(text: str) -> str:
    """Return the part of a text in which each thread occurs for the first time."""
    seen: set[str] = set()
    lines = text.splitlines(keepends=True)
    for place, line in enumerate(lines):
        if head := _HEAD.match(line.rstrip("\n")):
            if head[1] in seen:
                return "".join(lines[:place])
            seen.add(head[1])
    return text


def users_frame(frames: Sequence[tuple[str, int, str]]) -> tuple[str, int, str] | None:
    """Return the innermost frame whose file belongs to no library; None if there is none."""
    return next((each for each in reversed(frames) if not _is_of_library(each[0])), None)


def _is_of_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or _INSTALLED.search(file) is not None
