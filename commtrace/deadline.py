"""A time by which a process is to be done; else it ends, and leaves where it stood.

The watch is Python's own (`faulthandler`), which needs no lock of the interpreter: it ends a
process also while an extension blocks all of its threads. Whoever starts several processes ends the
others when the first has ended, by a signal; they leave where they stood too.
"""

from __future__ import annotations

import faulthandler
import re
import signal
import threading
from pathlib import Path

_SUFFIX = ".stuck"
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_LATE = "Timeout ("
_open_files = []


def end_by(timeout_s: float, folder: Path, rank: int) -> None:
    """End this process in `timeout_s` from now, instead of when it was to end before."""
    file = (folder / f"rank-{rank:05d}{_SUFFIX}").open("w", encoding="utf-8")
    print(f"{threading.main_thread().ident:x}", file=file, flush=True)
    faulthandler.register(signal.SIGTERM, file=file, chain=True)
    faulthandler.dump_traceback_later(timeout_s, exit=True, file=file)
    _open_files.append(file)  # which is written to without asking whether it is still open


def read_stuck(folder: Path) -> dict[int, list[tuple[str, int, str]]]:
    """Where ranks stood when a deadline ended them; none where it ended no rank.

    It is the stack of a rank's main thread: file, line and function of each call, the innermost
    last.
    """
    found, is_late = {}, False
    for path in sorted(folder.glob(f"rank-*{_SUFFIX}")):
        main, _, dump = path.read_text(encoding="utf-8", errors="replace").partition("\n")
        is_late |= dump.startswith(_LATE)
        if dump.strip():
            found[int(path.stem.partition("-")[2])] = _frames(dump, int(main, 16))
    return found if is_late else {}


def _frames(dump: str, thread: int) -> list[tuple[str, int, str]]:
    _, *parts = _THREAD.split(dump)
    stacks = {int(of, 16): text for of, text in zip(parts[::2], parts[1::2], strict=True)}
    frames = _FRAME.findall(stacks.get(thread, ""))
    return [(file, int(line), function) for file, line, function in reversed(frames)]
