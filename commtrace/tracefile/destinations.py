"""Destinations of a recording's spool: memory, a folder merged by others, a run file or folder.

A store opens the stream to which the recording writes its spool and is notified when it is closed.
A rank that closed its recording properly leaves `rank-00003.done` beside its spool. A recording of
bounded size has several files, `rank-00003.s1.spool` and so on (see `segments`).
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import socket
import time
from collections import Counter
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from commtrace.atomic_write import make_folder
from commtrace.errors import TraceError
from commtrace.process_options import RUN_SUFFIX
from commtrace.tracefile.beside_spool import files_beside
from commtrace.tracefile.dump_files import dump_path
from commtrace.tracefile.joining.collection import read_parts
from commtrace.tracefile.joining.split import LEFT_OUT
from commtrace.tracefile.liveness import beat, has_process, process_age_s
from commtrace.tracefile.run_file import write_trace
from commtrace.tracefile.run_folder import make_run_folder, spools_beside
from commtrace.tracefile.spool import DONE_SUFFIX, SPOOL_SUFFIX, spool_name
from commtrace.tracefile.spool_file import SpoolFile
from commtrace.tracefile.spool_reading import read_spool

_POLL_INTERVAL_S = 0.05
_TIME_TO_BEGIN_S = 5.0
# The system states the start of a process in clock ticks, usually of 10 ms.
_CLOCK_TICK_S = 0.02


class Store(Protocol):
    """Interface between a recording and its destination.

    Attributes:
        wants_axes: look up the mesh axes of groups when the recording ends.
    """

    wants_axes: bool

    @property
    def spool(self) -> Path | None:
        """The first file of the spool, None in memory."""
        ...

    def open(self, rank: int) -> BinaryIO:
        """Open a stream to write to and read back from."""
        ...

    def open_segment(self, number: int) -> BinaryIO:
        """Open the stream of a segment (see `segments`), and drop all but the previous."""
        ...

    def beat(self) -> None:
        """Give a sign of life (see `liveness`)."""
        ...

    def close(self, rank: int, num_ranks: int) -> None:
        """Finish the recording of `rank` of `num_ranks`, whose stream is complete."""
        ...


class Memory:
    """Keeps the spool in memory."""

    wants_axes = False
    spool = None

    def open(self, rank: int) -> BinaryIO:
        """Open a stream in memory."""
        return io.BytesIO()

    def open_segment(self, number: int) -> BinaryIO:
        """Open another stream in memory."""
        return io.BytesIO()

    def beat(self) -> None:
        """Do nothing."""

    def close(self, rank: int, num_ranks: int) -> None:
        """Do nothing."""


class SpoolFolder:
    """Writes the spool into a folder, to be merged with others later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wants_axes = True
        self._opened: Path | None = None
        self._stream: BinaryIO | None = None
        self._segment = 0

    def open(self, rank: int) -> BinaryIO:
        """Create the rank's file in the folder.

        If another live process uses that name, since not all processes know their rank yet, the
        name also contains the process id.
        """
        make_folder(self.folder)
        path = self.folder / spool_name(rank)
        for each in _files_of(path):
            if _is_own(each) or not _is_being_written(each):
                each.unlink(missing_ok=True)
        if _files_of(path):
            return self._begun(_name_of_process(path), os.O_TRUNC)
        try:
            return self._begun(path, os.O_EXCL)
        except FileExistsError:
            return self._begun(_name_of_process(path), os.O_TRUNC)

    def _begun(self, path: Path, flags: int) -> BinaryIO:
        # Unbuffered, so that a killed process loses nothing of a batch that was written.
        stream = SpoolFile(path, flags)
        _done_mark(path).unlink(missing_ok=True)
        self._opened, self._segment = path, 0
        self._stream = cast("BinaryIO", stream)
        return self._stream

    def open_segment(self, number: int) -> BinaryIO:
        """Create the file of a segment; remove all but the previous, which is done."""
        assert self._opened is not None
        new, last = (_segment_path(self._opened, each) for each in (number, number - 1))
        stream = SpoolFile(new, os.O_TRUNC)
        self._segment = number
        _done_mark(last).touch(mode=0o600)
        for stale in _files_of(self._opened):
            if stale not in (new, last):
                stale.unlink(missing_ok=True)
                _done_mark(stale).unlink(missing_ok=True)
        self._stream = cast("BinaryIO", stream)
        return self._stream

    @property
    def spool(self) -> Path | None:
        """The first file of the spool, once it is open."""
        return self._opened

    def beat(self) -> None:
        """Set the time of the last change of the newest file to now."""
        if self._stream is not None:
            beat(self._stream)

    def close(self, rank: int, num_ranks: int) -> None:
        """Leave the mark of a properly closed recording.

        Raises:
            FileNotFoundError: the spool was removed while it was written.
        """
        if self._opened is not None:
            newest = _segment_path(self._opened, self._segment)
            newest.stat()
            _done_mark(newest).touch(mode=0o600)


class OwnSpool(SpoolFolder):
    """Writes the spool into a folder under a name that no other process takes, now or later."""

    def open(self, rank: int) -> BinaryIO:
        """Create a file named after the rank and the process id."""
        make_folder(self.folder)
        return self._begun(_name_of_process(self.folder / spool_name(rank)), os.O_TRUNC)


class RunFolder(SpoolFolder):
    """Writes the spool into the folder of a run, beside all that is there already.

    Attributes:
        path: the folder.
        num_earlier: number of spools of the rank whose processes have ended, known once opened.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path
        self.num_earlier = 0

    def open(self, rank: int) -> BinaryIO:
        """Create the next file of the rank."""
        make_run_folder(self.path)
        first = path = self.path / spool_name(rank)
        for number in count(1):
            earlier = _files_of(path)
            try:
                if not earlier:
                    return self._begun(path, os.O_EXCL)
            except FileExistsError:
                earlier = [path]
            self.num_earlier += not any(map(_is_being_written, earlier))
            path = first.with_suffix(f".{number}{SPOOL_SUFFIX}")
        raise AssertionError("unreachable")


def store_for(path: Path, merge_timeout_s: float) -> Store:
    """Return the destination for a path: the folder of a run if it ends in .comm, or a run file."""
    return RunFolder(path) if path.suffix == RUN_SUFFIX else RunFile(path, merge_timeout_s)


def _segment_path(first: Path, number: int) -> Path:
    return first.with_suffix(f".s{number}{SPOOL_SUFFIX}") if number else first


def _files_of(first: Path) -> list[Path]:
    """Return the files of a recording: its first, if it is still there, and later segments."""
    later = first.parent.glob(f"{first.stem}.s[0-9]*{SPOOL_SUFFIX}")
    return [*([first] if first.exists() else []), *later]


def _name_of_process(spool: Path) -> Path:
    return spool.with_suffix(f".{os.getpid()}{SPOOL_SUFFIX}")


_num_recordings: Counter[tuple[Path, int]] = Counter()
"""Number of recordings of a rank to a file; each recording has its own folder of spools."""


class RunFile:
    """Writes spools beside the run file; rank 0 merges them into it at the end."""

    wants_axes = True

    def __init__(self, path: Path, merge_timeout_s: float) -> None:
        self.path = path
        self._merge_timeout_s = merge_timeout_s
        self._folder: SpoolFolder

    def open(self, rank: int) -> BinaryIO:
        """Create the rank's file in the folder of spools; remove spools of an earlier program."""
        if self.path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "an existing folder", str(self.path))
        key = self.path.absolute(), rank
        _num_recordings[key] += 1
        number = _num_recordings[key]
        suffix = f"-{number}" if number > 1 else ""
        spools = spools_beside(self.path)
        self._folder = SpoolFolder(spools.with_name(spools.name + suffix))
        _remove_left_overs(self._folder.folder)
        return self._folder.open(rank)

    def open_segment(self, number: int) -> BinaryIO:
        """Create the file of a segment in the folder of spools."""
        return self._folder.open_segment(number)

    @property
    def spool(self) -> Path | None:
        """The first file of the spool, once it is open."""
        return self._folder.spool

    def beat(self) -> None:
        """Give a sign of life in the folder of spools."""
        self._folder.beat()

    def close(self, rank: int, num_ranks: int) -> None:
        """On rank 0, wait for ranks that still record, then merge all spools and remove them."""
        self._folder.close(rank, num_ranks)
        if rank == 0:
            folder = self._folder.folder
            wait_for_others(folder, self._merge_timeout_s)
            # Those that are still written will have more than the run file.
            growing = {spool.name for spool in _unfinished(folder)}
            trace = read_parts([folder])
            write_trace(trace, self.path)
            remove_joined(folder, growing.union(trace.run.get(LEFT_OUT, ())))


def _done_mark(spool: Path) -> Path:
    return spool.with_name(spool.name.removesuffix(SPOOL_SUFFIX) + DONE_SUFFIX)


def _unfinished(folder: Path) -> list[Path]:
    """Return the spools that a live process is still writing."""
    return [
        spool
        for spool in folder.glob(f"*{SPOOL_SUFFIX}")
        if not _done_mark(spool).exists() and _is_being_written(spool)
    ]


def _is_own(spool: Path) -> bool:
    """Return whether this process has written a spool; its recording is then over."""
    try:
        facts = read_spool(spool, columns={}).facts
    except (TraceError, OSError):
        return False
    return (facts["host"], facts["pid"]) == (socket.gethostname(), os.getpid())


def _is_being_written(spool: Path) -> bool:
    """Return whether the process that writes a spool is alive; true if that is unknown."""
    try:
        facts = read_spool(spool, columns={}).facts
    except (TraceError, OSError):
        return _age_s(spool) < _TIME_TO_BEGIN_S  # otherwise it was killed before it had written
    if facts["host"] != socket.gethostname():
        return True
    # A process that started after the last write has a reused process id.
    return has_process(facts["pid"]) and (
        process_age_s(facts["pid"]) > _age_s(spool) - _CLOCK_TICK_S
    )


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:  # it was removed
        return float("inf")


def wait_for_others(folder: Path, timeout_s: float) -> None:
    """Wait until no live process writes a spool in the folder, or until the timeout."""
    deadline = time.monotonic() + timeout_s
    while _unfinished(folder) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_S)


def remove_joined(folder: Path, left_out: Collection[str]) -> None:
    """Remove a folder of spools, except those that were left out of the run."""
    if not left_out:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.iterdir():
        if path.name not in left_out:
            path.unlink(missing_ok=True)


def _remove_left_overs(folder: Path) -> None:
    """Remove the spools of processes that have ended, which belong to an earlier recording."""
    for spool in folder.glob(f"*{SPOOL_SUFFIX}"):
        if not _is_being_written(spool):
            spool.unlink(missing_ok=True)
            for beside in (_done_mark(spool), dump_path(spool), *files_beside(spool)):
                beside.unlink(missing_ok=True)
