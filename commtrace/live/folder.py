"""The growing spools of a run's folder, and the new contents of each.

A *recording* is a process's part: a spool, or the segments of a ring recording, whose oldest
segments are removed while it grows. A restarted rank has several recordings; the latest counts.
Nothing is written, and no file stays open.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commtrace.live.clock import Clock
from commtrace.live.names import RunNames
from commtrace.live.tail import News, SpoolTail, is_rank, number_fact, text_fact
from commtrace.tracefile.spool import DONE_SUFFIX, SPOOL_SUFFIX

MOST_RECORDINGS = 1 << 14
"""Bound on the recordings of a folder that are followed."""
_NAME = re.compile(
    rf"(?P<first>.{{1,200}}?)(?:\.s(?P<segment>\d{{1,9}}))?{re.escape(SPOOL_SUFFIX)}"
)


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    inode: int
    size: int
    mtime_ns: int


@dataclass(slots=True, eq=False)
class FollowedRecording:
    """The spool of a process, or its segments.

    Attributes:
        name: file name of the first segment, without suffix.
        mtime_ns: when the last of its files changed, by the clock of the file system.
        changed_at_s: the same by the watcher's own clock; for a change before the first look,
            computed from its age by the clock of the file system.
        is_done: the mark of a properly closed recording is there.
        is_gone: its files have been removed.
        missed_segments: segments that were removed before they were read.
    """

    name: str
    mtime_ns: int = -1
    changed_at_s: float = float("-inf")
    is_done: bool = False
    is_gone: bool = False
    missed_segments: int = 0
    tails: dict[int, SpoolTail] = field(default_factory=dict)
    inodes: dict[int, int] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of the newest segment with facts."""
        for number in sorted(self.tails, reverse=True):
            if self.tails[number].facts:
                return self.tails[number].facts
        return {}

    @property
    def rank(self) -> int | None:
        """The rank, None before the first batch."""
        rank = self.facts.get("rank")
        return rank if is_rank(rank) else None

    @property
    def start_ns(self) -> int:
        """Begin of the recording."""
        return number_fact(self.facts, "start_ns")

    @property
    def last_ns(self) -> int:
        """End of the recording, or else the last change of its files."""
        end_ns = number_fact(self.facts, "end_ns")
        return end_ns if self.is_complete and end_ns > 0 else self.mtime_ns

    @property
    def attempt(self) -> tuple[str, int]:
        """The launcher's id of the run, and its attempt, if it stated them."""
        run = self.facts.get("run")
        run = run if isinstance(run, dict) else {}
        return text_fact(run, "run_id"), number_fact(run, "attempt")

    @property
    def is_complete(self) -> bool:
        """True if the process has closed its recording."""
        return self.facts.get("complete") is True

    @property
    def damage(self) -> str:
        """Description of the first damage; empty if there is none."""
        damages = (f"{each.path.name}: {each.damage}" for each in self.tails.values())
        return next((text for text in damages if not text.endswith(": ")), "")

    @property
    def num_bytes_left(self) -> int:
        """Number of bytes present when watching began and not read yet."""
        if self.is_gone:
            return 0
        tails = [each for each in self.tails.values() if each.is_behind]
        return sum(max(each.first_size - each.position, 0) for each in tails)


class RunTail:
    """Reads the new contents of the spools in a folder.

    Attributes:
        recordings: all recordings by name.
        is_gone: the folder has vanished.
        is_behind: the last reading ran out of time before the end of the data.
        num_left_out: recordings beyond `MOST_RECORDINGS`.
    """

    def __init__(self, folder: Path, names: RunNames, clock: Clock) -> None:
        self.folder = folder
        self.recordings: dict[str, FollowedRecording] = {}
        self.is_gone = self.is_behind = False
        self.num_left_out = 0
        self._names = names
        self._clock = clock
        self._next = 0

    def read(self, most_s: float) -> Iterator[tuple[FollowedRecording, News]]:
        """Yield the new contents of each recording, for about `most_s` seconds."""
        begin = self._clock.monotonic_s()
        self._scan(begin)
        ordered = list(self.recordings.values())
        # Begin where the last reading ended, so that no rank is starved.
        ordered = ordered[self._next :] + ordered[: self._next]
        self.is_behind = False
        for number, recording in enumerate(ordered):
            at_s = self._clock.monotonic_s()
            if at_s - begin > most_s:
                self._next = (self._next + number) % len(ordered)
                self.is_behind = True
                return
            for news in self._news(recording, at_s):
                yield recording, news
        self.is_behind = any(
            tail.is_behind for each in ordered for tail in each.tails.values() if not each.is_gone
        )

    def _news(self, recording: FollowedRecording, at_s: float) -> Iterator[News]:
        newest = max(recording.tails, default=0)
        for number in sorted(recording.tails):
            tail = recording.tails[number]
            if tail.size == tail.position or tail.damage:
                if number < newest:
                    tail.forget_names()
                continue
            try:
                news = tail.read(at_s)
            except FileNotFoundError:  # removed since
                continue
            except OSError as error:
                tail.damage = f"cannot be read: {(error.strerror or str(error)).lower()}"
                continue
            if news.num_batches:
                yield news
            if tail.is_behind:  # later segments come after it
                return

    def _scan(self, at_s: float) -> None:
        try:
            files, done = _files(self.folder)
        except OSError:
            self.is_gone = True
            return
        self.is_gone = False
        for name, segments in files.items():
            recording = self.recordings.get(name)
            if recording is None or _is_replaced(recording, segments):
                if recording is None and len(self.recordings) >= MOST_RECORDINGS:
                    self.num_left_out = len(files) - len(self.recordings)
                    continue
                recording = self.recordings[name] = FollowedRecording(name)
            self._look_at(recording, segments, at_s)
            recording.is_done = segments[max(segments)].path.stem in done
        for name in self.recordings.keys() - files.keys():
            self.recordings[name].is_gone = True

    def _look_at(self, recording: FollowedRecording, files: dict[int, _File], at_s: float) -> None:
        recording.is_gone = False
        first = not recording.tails
        newest_read = max(recording.tails, default=-1)
        for number, file in sorted(files.items()):
            tail = recording.tails.get(number)
            if tail is None:
                tail = recording.tails[number] = SpoolTail(file.path, self._names)
                recording.inodes[number] = file.inode
                tail.first_size = file.size
            tail.size = file.size
        if not first and newest_read >= 0:
            recording.missed_segments += max(min(files) - newest_read - 1, 0)
        for number in recording.tails.keys() - files.keys():
            if number < min(files):
                del recording.tails[number], recording.inodes[number]
        mtime_ns = max(each.mtime_ns for each in files.values())
        if mtime_ns != recording.mtime_ns:
            age_s = max((self._clock.wall_ns() - mtime_ns) / 1e9, 0.0) if first else 0.0
            recording.mtime_ns, recording.changed_at_s = mtime_ns, at_s - age_s


def _files(folder: Path) -> tuple[dict[str, dict[int, _File]], set[str]]:
    """Return a folder's spools by recording and segment, and the names of finished recordings."""
    found: dict[str, dict[int, _File]] = {}
    done: set[str] = set()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(DONE_SUFFIX):
                done.add(entry.name.removesuffix(DONE_SUFFIX))
                continue
            match = _NAME.fullmatch(entry.name)
            if match is None:
                continue
            try:
                status = entry.stat()
            except OSError:  # removed since
                continue
            if not stat.S_ISREG(status.st_mode):
                continue
            file = _File(Path(entry.path), status.st_ino, status.st_size, status.st_mtime_ns)
            found.setdefault(match["first"], {})[int(match["segment"] or 0)] = file
    # Earlier runs come first, so that their contents are known to be stale.
    return dict(sorted(found.items(), key=_last_change)), done


def _is_replaced(recording: FollowedRecording, files: dict[int, _File]) -> bool:
    """Return whether another program has written files of the same names."""
    return any(
        recording.inodes[number] != files[number].inode or files[number].size < tail.position
        for number, tail in recording.tails.items()
        if number in files
    )


def _last_change(recording: tuple[str, dict[int, _File]]) -> tuple[int, str]:
    name, files = recording
    return max(file.mtime_ns for file in files.values()), name
