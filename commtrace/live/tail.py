"""Incremental reader of a spool: each reading takes the new batches only.

An incomplete batch is left for the next reading. A complete batch with a wrong checksum may still
be in transit through a network file system; after `_PATIENCE_S`, the spool counts as damaged there
and nothing after it is read. The memory for names and call sites is bounded.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from commtrace.live.batches import MOST_INFLATED_BYTES, Batch, parse
from commtrace.live.names import SITE_COLUMNS, RunNames, Site
from commtrace.schema import MAX_RANKS
from commtrace.tracefile.reading import DamageError, is_int
from commtrace.tracefile.spool import (
    BATCH,
    FIRST_LINE,
    FOUND_STEPS,
    NUMBERS,
    OUTSTANDING,
    first_line_of,
    sites_of,
)

CALL_COLUMNS = tuple(column.name for column in NUMBERS["comm"])
"""Rows of `News.calls`; the last is the number of the call site in `RunNames`."""

MOST_BYTES_AT_ONCE = 8 << 20
_PATIENCE_S = 10.0
_MOST_BYTES_OF_NAMES = 64 << 20
_GROUP_COLUMNS = ("name", "ranks", "mesh_axis", "description")
_IN_FLIGHT_COLUMNS = (
    "id", "seq", "issue_ns", "call_ns", "blocked_ns", "complete_ns", "step", "group",
    *SITE_COLUMNS,
)  # fmt: skip
_SITE = len(CALL_COLUMNS) - 1


@dataclass(frozen=True, slots=True)
class InFlight:
    """A call in flight in the last batch of its rank; times are -1 if unknown."""

    id: int
    seq: int
    issue_ns: int
    call_ns: int
    blocked_ns: int
    complete_ns: int
    step: int
    rank: int
    thread: int
    site: int


@dataclass(slots=True)
class News:
    """New contents of a spool, found in a single reading.

    Attributes:
        num_batches: number of new batches.
        calls: numbers of calls that ended, as rows of `CALL_COLUMNS`, an array per batch.
        in_flight: the calls in flight, None without a new batch.
        steps: source (empty if marked), number, begin and end of each step.
        last_op_ns: end of the last operator; -1 if unknown.
    """

    num_batches: int = 0
    calls: list[np.ndarray[Any, Any]] = field(default_factory=list)
    in_flight: list[InFlight] | None = None
    steps: list[tuple[str, int, int, int]] = field(default_factory=list)
    last_op_ns: int = -1


class SpoolTail:
    """Reads the new contents of a spool.

    Attributes:
        facts: facts of all batches so far.
        position: bytes read and understood.
        size: size of the file when it was last looked at.
        first_size: size of the file when it was first looked at.
        damage: description of the damage at which reading stopped; empty if there is none.

    """

    def __init__(self, path: Path, names: RunNames) -> None:
        self.path = path
        self.facts: dict[str, Any] = {}
        self.position = self.size = self.first_size = 0
        self.damage = ""
        self._names = names
        self._strings = names.same([""])
        self._sites: list[int] = []
        self._site_array = np.empty(0, dtype=np.int64)
        self._groups: dict[str, int] = {}
        self._num_bytes_of_names = 0
        self._incomplete_until = 0
        self._torn_since: float | None = None

    @property
    def is_behind(self) -> bool:
        """True while there are unread bytes, left for lack of time."""
        return not self.damage and self.size > max(self.position, self._incomplete_until)

    @property
    def has_tail(self) -> bool:
        """True if the file ends with a part of a batch."""
        return not self.damage and self.position < self.size

    def forget_names(self) -> None:
        """Free the memory of a segment that no longer grows."""
        self._strings, self._sites = [], []

    def read(self, at_s: float, most: int = MOST_BYTES_AT_ONCE) -> News:
        """Read new batches, about `most` bytes of them, at time `at_s`.

        Raises:
            OSError: the file is gone or cannot be read.
        """
        news = News()
        if self.damage:
            return news
        try:
            data = self._new_bytes(most)
            self._take(data, news, at_s)
        except DamageError as error:
            place = f", {error.place}" if error.place else ""
            self.damage = f"byte {self.position}{place}: {error.found}"
        except (ValueError, TypeError, OverflowError, KeyError, IndexError, MemoryError) as error:
            self.damage = f"byte {self.position}: {type(error).__name__}"
        return news

    def _new_bytes(self, most: int) -> bytes:
        # O_NONBLOCK, since opening a pipe would wait for its writer.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DamageError("something that is not a file")
            self.size = status.st_size
            if self.size < self.position:
                raise DamageError(f"a file of {self.size} bytes, shorter than before")
            end = min(self.size, max(self.position + most, self._incomplete_until))
            if end <= self.position or self.size < self._incomplete_until:
                return b""
            return os.pread(descriptor, end - self.position, self.position)
        finally:
            os.close(descriptor)

    def _take(self, data: bytes, news: News, at_s: float) -> None:
        begin = 0
        if not self.position and data:
            first = first_line_of(data)
            if not first:
                if FIRST_LINE.startswith(data):
                    return
                raise DamageError(f"{data[:32]!r} in place of the first line of a spool")
            begin = self.position = len(first)
        last: Batch | None = None
        while begin + BATCH.size <= len(data):
            length, checksum = BATCH.unpack_from(data, begin)
            if length > MOST_INFLATED_BYTES:
                raise DamageError(f"a batch of {length:,} bytes")
            end = begin + BATCH.size + length
            if end > len(data):
                self._incomplete_until = self.position + end - begin
                break
            payload = data[begin + BATCH.size : end]
            if not length or zlib.crc32(payload) != checksum:
                self._require_patience(at_s)
                break
            self._torn_since = None
            last = parse(payload)
            self._learn(last, news)
            self.position += end - begin
            begin = end
        if last is not None:
            news.in_flight = self._in_flight(last)

    def _require_patience(self, at_s: float) -> None:
        if self._torn_since is None:
            self._torn_since = at_s
        elif at_s - self._torn_since > _PATIENCE_S:
            raise DamageError("a batch that does not match its checksum")
        self._incomplete_until = self.size

    def _learn(self, batch: Batch, news: News) -> None:
        self.facts.update(batch.facts)
        self._charge(sum(map(len, batch.strings)) + 8 * len(batch.strings))
        self._strings += self._names.same(batch.strings)
        rows = zip(*batch.columns("groups", _GROUP_COLUMNS, self._strings), strict=True)
        for name, ranks, *labels in rows:
            self._charge(8 * len(ranks))
            self._groups[name] = self._names.group(name, ranks, *labels)
        self._learn_sites(batch)
        calls = batch.calls()
        if calls.shape[1]:
            news.calls.append(self._with_sites(calls))
        for table, source in (("steps", None), (FOUND_STEPS, "source")):
            if batch.num_rows(table):
                names = (*([source] if source else []), "step", "start_ns", "end_ns")
                columns = batch.columns(table, names, self._strings)
                sources = columns[0] if source else [""] * batch.num_rows(table)
                news.steps += zip(sources, *columns[-3:], strict=True)
        news.last_op_ns = max(news.last_op_ns, batch.last_op_ns())
        news.num_batches += 1

    def _learn_sites(self, batch: Batch) -> None:
        table = sites_of("comm")
        if not batch.num_rows(table):
            return
        columns = batch.columns(table, ("group", *SITE_COLUMNS), self._strings)
        for group, _, _, *rest in zip(*columns, strict=True):
            self._sites.append(self._names.site(Site(self._group(group), *rest)))
        self._charge(16 * len(columns[0]))
        self._site_array = np.array(self._sites, dtype=np.int64)

    def _group(self, name: str) -> int:
        number = self._groups.get(name)
        if number is None:  # the group is described in no batch
            number = self._groups[name] = self._names.group(name)
        return number

    def _with_sites(self, calls: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        sites = calls[_SITE]
        if sites.min() < 0 or sites.max() >= len(self._site_array):
            raise DamageError("a call site that is not there", "tables.comm.numbers")
        calls[_SITE] = self._site_array[sites]
        return calls

    def _in_flight(self, batch: Batch) -> list[InFlight]:
        columns = batch.columns(OUTSTANDING, _IN_FLIGHT_COLUMNS, self._strings)
        num_known = len(self._names.sites)
        found = []
        for row in zip(*columns, strict=True):
            number, seq, issue, call, blocked, complete, step, group, rank, thread, *rest = row
            site = self._names.site(Site(self._group(group), *rest))
            found.append(
                InFlight(number, seq, issue, call, blocked, complete, step, rank, thread, site)
            )
        self._charge(16 * (len(self._names.sites) - num_known))
        return found

    def _charge(self, num_bytes: int) -> None:
        self._num_bytes_of_names += num_bytes
        if self._num_bytes_of_names > _MOST_BYTES_OF_NAMES:
            raise DamageError("more names and call sites than a rank has")


def is_rank(value: Any) -> bool:
    """Return whether a fact is the number of a rank."""
    return is_int(value) and 0 <= value < MAX_RANKS


def text_fact(facts: Mapping[str, Any], name: str) -> str:
    """Return a fact if it is a text, else an empty text."""
    value = facts.get(name)
    return value if isinstance(value, str) else ""


def number_fact(facts: Mapping[str, Any], name: str, default: int = -1) -> int:
    """Return a fact if it is an integer, else `default`."""
    value = facts.get(name)
    return value if is_int(value) else default
