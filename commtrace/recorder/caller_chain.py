"""Frames of the user's code around a call, from which its line was reached.

A program has few chains and many calls. Each chain is a single object, so that a call keeps only a
reference and call sites compare by identity. Lines are computed when a chain is written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import CodeType, FrameType

INSTALLED_IN = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
"""Folders of installed packages, as a part of a file's name."""
MOST_FRAMES = 32
"""Number of innermost frames of a chain that are kept: recursion can be deep."""
_MOST_CHAINS = 1 << 14
_RESUMED = "torch_dynamo_resume_in_"

CodePlace = tuple[CodeType, int]
"""Code, and the offset of an instruction in it."""


class CallerChain:
    """Places in code, innermost first; compared by identity."""

    __slots__ = ("_text", "places")

    def __init__(self, places: Sequence[CodePlace]) -> None:
        self.places = tuple(places[:MOST_FRAMES])
        self._text: str | None = None

    @property
    def text(self) -> str:
        """The frames as lines `file:line function`, outermost first."""
        if self._text is None:
            self._text = "\n".join(map(text_of_place, reversed(self.places)))
        return self._text


def text_of_place(place: CodePlace) -> str:
    """Return a place in code as `file:line function`."""
    code, instruction = place
    return f"{code.co_filename}:{line_of(code, instruction)} {function_of(code)}"


_chains: dict[tuple[int, ...], CallerChain] = {}
known_chain = _chains.get
"""Returns the chain of a key: the identity of each code, and the offset in it."""


def chain_of_frames(key: tuple[int, ...], frames: Sequence[FrameType]) -> CallerChain:
    """Return the chain of frames, innermost first, and keep it, and its code, under a key."""
    return _kept(key, [(frame.f_code, frame.f_lasti) for frame in frames])


def joined_chain(inner: CallerChain | None, outer: Sequence[CodePlace]) -> CallerChain:
    """Return the chain of a thread, continued by the chain of the thread that it works for."""
    places = [*(inner.places if inner else ()), *outer]
    key = tuple([number for code, instruction in places for number in (id(code), instruction)])
    return known_chain(key) or _kept(key, places)


def _kept(key: tuple[int, ...], places: Sequence[CodePlace]) -> CallerChain:
    if len(_chains) >= _MOST_CHAINS:
        _chains.clear()
    return _chains.setdefault(key, CallerChain(places))


def line_of(code: CodeType, instruction: int) -> int:
    """Return the line of an instruction; a frame's own is as costly and must be read at once.

    An instruction that the compiler added, such as the jump of a loop, has no line, and its frame
    has none either. The line before it is used.
    """
    found = code.co_firstlineno
    for begin, _, line in code.co_lines():
        if begin > instruction:
            break
        found = line or found
    return found


def code_and_line(frame: FrameType) -> tuple[CodeType, int]:
    """Return the code of a frame and the line that it is at."""
    return frame.f_code, line_of(frame.f_code, frame.f_lasti)


def function_of(code: CodeType) -> str:
    """Return the user's function, even if torch.compile resumes it after a graph break."""
    name = code.co_name
    if not name.startswith(_RESUMED):
        return name
    return name.removeprefix(_RESUMED).rpartition("_at_")[0]
