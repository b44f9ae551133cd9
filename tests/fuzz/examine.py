"""Run the commands of a case in this process, and check how they end.

A command must exit with a documented code, report a refusal in a sentence on stderr, leave an
output that it does not finish unchanged, end in time, and use memory in proportion to its input.
Anything else is a defect.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from commtrace.exporters.chakra import GROUPS_FILE
from commtrace.schema import TABLES
from tests.fuzz.cases import BASELINE, OUT_FOLDER, Case

TIME_LIMIT_S = 60
"""CPU time in seconds that a command may take."""
WAITS = 5
"""Ratio of the limit on elapsed time to that on CPU time, for a busy machine."""
MOST_GROWTH_BYTES = 512 << 20
GROWTH_PER_BYTE = 250
SENTINEL = b"what was there before"

CODES = {
    "check": {1}, "explain": {2}, "--fail-on": {1}, "--window": {2}, "--steps": {2},
    "--on-hang": {4}, "--on-mismatch": {6},
}  # fmt: skip
"""Exit codes of a command or an option; every command also has 0 and 3."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a command; `defect` is empty if there is none."""

    kind: str
    number: int
    command: str
    arguments: str
    code: int
    defect: str = ""
    reported: str = ""
    seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)


class _TooLong(BaseException):
    """A command has exceeded its time limit."""


def examine(case: Case, folder: Path) -> list[Outcome]:
    """Write a case into an empty folder, and run its commands there."""
    commands = case.write(folder)
    found = []
    for words in commands:
        if (
            words[0] != "import"
            and "imported.json" in words
            and not (folder / "imported.json").exists()
        ):
            continue
        found.append(_judged(case, words, folder))
    return found


def _judged(case: Case, words: tuple[str, ...], folder: Path) -> Outcome:
    output = _output_of(words, folder)
    if output is not None:
        output.write_bytes(SENTINEL)
    names = {path.name for path in folder.iterdir()}
    size = sum(path.stat().st_size for path in folder.rglob("*") if _is_small(path))
    before = _forget_peak()
    began = time.monotonic()
    with _in_parts() if case.is_in_parts else contextlib.nullcontext():
        code, err, failure = _run(words, folder)
    seconds = time.monotonic() - began
    growth = _peak() - before
    defect = failure or _defect_of(words, code, err)
    if not defect and growth > MOST_GROWTH_BYTES + GROWTH_PER_BYTE * size:
        defect = f"memory: {growth >> 20} MiB for {size} bytes"
    if not defect and output is not None:
        defect = _destroyed(output, code)
    left = {path.name for path in folder.iterdir()} - names
    if code == 0 and OUT_FOLDER in words:
        defect = defect or _incomplete(folder / OUT_FOLDER, words)
        left -= {OUT_FOLDER}
    shutil.rmtree(folder / OUT_FOLDER, ignore_errors=True)
    if not defect and left:
        defect = f"left behind: {', '.join(sorted(left))}"
    if output is not None and output.is_file() and output.name != "imported.json":
        output.unlink()
    elif code and output is not None:
        output.unlink(missing_ok=True)
    return Outcome(
        case.kind, case.number, words[0], shlex.join(words), code, defect, err[-3000:], seconds
    )


@contextlib.contextmanager
def _in_parts() -> Iterator[None]:
    """Let every run with a dataset be read in parts."""
    from commtrace.tracefile import opening

    most = opening.ROWS_IN_MEMORY
    opening.ROWS_IN_MEMORY = 0
    try:
        yield
    finally:
        opening.ROWS_IN_MEMORY = most


def _is_small(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 30


def _output_of(words: tuple[str, ...], folder: Path) -> Path | None:
    is_file = "-o" in words and OUT_FOLDER not in words
    return folder / words[words.index("-o") + 1] if is_file else None


def _run(words: tuple[str, ...], folder: Path) -> tuple[int, str, str]:
    """Return the exit code, stderr, and the traceback or hang that ended the command."""
    out, err = _stream(), _stream()
    here = os.getcwd()
    os.chdir(folder)
    try:
        with _time_limit(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = _baseline(words[1]) if words[0] == BASELINE else _command(words)
        failure = ""
    except _TooLong:
        code, failure = -1, f"hang: not over after {TIME_LIMIT_S} s"
    except BaseException as error:
        code, failure = -1, f"traceback: {_where(error)}"
        err.write(traceback.format_exc())
    finally:
        os.chdir(here)
    err.flush()
    return code, err.buffer.getvalue().decode("utf-8", "replace"), failure  # type: ignore[attr-defined]


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def _command(words: tuple[str, ...]) -> int:
    from commtrace_cli.main import main

    sys.argv = ["commtrace", *words]
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _baseline(name: str) -> int:
    """Read a baseline as a test does, and compare it with the calls found."""
    from commtrace.errors import CommtraceError
    from commtrace.pytest_plugin import baseline

    try:
        for test, entry in baseline.read(Path(name)).items():
            baseline.compare(entry, {"ranks": 2, "places": []}, "", test=test, path=name)
    except CommtraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    """Raise `_TooLong` at the limit of CPU time, or at five times the limit of elapsed time."""

    def stop(number: int, frame: Any) -> None:
        raise _TooLong

    signals = {signal.SIGPROF: signal.ITIMER_PROF, signal.SIGALRM: signal.ITIMER_REAL}
    before = {number: signal.signal(number, stop) for number in signals}
    signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT_S)
    signal.setitimer(signal.ITIMER_REAL, WAITS * TIME_LIMIT_S)
    try:
        yield
    finally:
        for number, timer in signals.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def _where(error: BaseException) -> str:
    """Describe the exception and the innermost frame in commtrace."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        f
        for f in frames
        if "commtrace" in Path(f.filename).parts[-3:-1] or "/commtrace" in f.filename
    ]
    place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
    return f"{type(error).__name__} at {place}: {str(error)[:120]}"


def _defect_of(words: tuple[str, ...], code: int, err: str) -> str:
    """Return the defect of an exit without a traceback, or an empty string."""
    if "Traceback" in err:
        return "traceback on stderr"
    if code not in {0, 3}.union(*(CODES.get(word, ()) for word in words)):
        return f"exit code {code}"
    if code == 3:
        missing = [
            name for name in ("error: ", "  found: ", "  why: ", "  try: ") if name not in err
        ]
        if missing:
            return f"an error without {', '.join(missing)}"
    return ""


def _destroyed(output: Path, code: int) -> str:
    written = output.read_bytes() if output.is_file() else b""
    if code in (2, 3) and written != SENTINEL:
        return "the output that was there is destroyed"
    if code == 0 and (not written or written == SENTINEL):
        return "no output was written"
    return ""


def _incomplete(tables: Path, words: Sequence[str]) -> str:
    """Return the defect of a folder of tables, which has a file for each, or of one for Chakra."""
    if "chakra" in words:
        names = {path.name for path in tables.iterdir()}
        return "" if GROUPS_FILE in names else f"no {GROUPS_FILE} was written"
    lacking = [name for name in TABLES if not (tables / f"{name}.csv").is_file()]
    return f"no table {', '.join(lacking)} was written" if lacking else ""


def _forget_peak() -> int:
    """Reset the kernel's record of this process's peak memory, and return the current value."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0
