"""Segments of a spool of bounded size: each is a spool by itself, and only the last two are kept.

    rank-00003.spool       segment 0, removed when segment 2 begins
    rank-00003.s1.spool    segment 1
    rank-00003.s2.spool    segment 2, being written

A segment begins anew with facts, strings, groups and call sites. Its facts state its number, its
beginning, and how many calls and operators the segments before it have; table `removed_calls` has
hashes of these calls, so that ranks can still be compared. Readers join the segments that are
there into a single recording. A call that was in progress at the end of a segment is in the next
too, and counts there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from commtrace.call_hash import PLACE, added, hash_of_call, hash_of_place
from commtrace.collective_table import PEER, needing
from commtrace.tracefile.spool import (
    NUMBERS,
    SITES,
    TAKEN_FOR,
    Rows,
    SpoolWriter,
    contents_of,
    sites_of,
)

SEGMENT = "segment"
"""Name of the fact of a spool that states the number of the segment."""
BEGIN = "segment_ns"
"""Name of the fact of a spool with the time from which all events are in it or later segments."""
BEFORE = "num_before"
"""Name of the fact of a spool with the numbers of calls and operators of earlier segments."""
_MAX_SITES = 1 << 18
"""Number of call sites that are remembered; the recorder refers only to the latest."""

_SEQ = [column.name for column in NUMBERS["comm"]].index("seq")
_SITE_NAMES = [column.name for column in SITES["comm"]]
_TRANSFERS = frozenset(needing(PEER))

OpenSegment = Callable[[int], BinaryIO]


class _Sites:
    """Call sites of a table; a segment has only those that its events refer to."""

    def __init__(self, table: str) -> None:
        self._width = len(NUMBERS[table])
        self._rows: dict[int, tuple[Any, ...]] = {}
        self._num_known = 0
        self._places: dict[int, int] = {}
        self._pending: tuple[int, dict[int, int]] = (0, {})

    def begin_segment(self) -> None:
        self._places = {}

    def needed(self, new: Rows, numbers: Sequence[int]) -> tuple[Rows, list[int]]:
        """Return the rows to write, and the numbers with the places that the rows then have."""
        self._rows.update(enumerate(new, start=self._num_known))
        flat, places = list(numbers), self._places
        used = flat[self._width - 1 :: self._width]
        fresh = [site for site in dict.fromkeys(used) if site not in places]
        place_of = dict(zip(fresh, range(len(places), len(places) + len(fresh)), strict=True))
        flat[self._width - 1 :: self._width] = [
            place_of[site] if site in place_of else places[site] for site in used
        ]
        self._pending = len(new), place_of
        return [self._rows[site] for site in fresh], flat

    def row(self, number: int) -> tuple[Any, ...] | None:
        """Return the row of a call site, as the recorder numbers it."""
        return self._rows.get(number)

    def written(self) -> None:
        """Note that the rows of the last call are in the file."""
        num_new, place_of = self._pending
        self._num_known += num_new
        self._places.update(place_of)
        while len(self._rows) > _MAX_SITES:
            del self._rows[next(iter(self._rows))]


class _Written:
    """Collectives of each rank and group that are in the file: number, end, and hash.

    A group in which a place is not remembered has a number that does not fit its end.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[int, str], list[int]] = {}
        self._places: dict[int, tuple[tuple[int, str], int] | None] = {}

    def add(self, numbers: Sequence[int], sites: _Sites) -> None:
        """Add the calls of a batch; the last number of each is its call site's."""
        places = self._places
        width = len(NUMBERS["comm"])
        for seq, site in zip(numbers[_SEQ::width], numbers[width - 1 :: width], strict=True):
            place = places[site] if site in places else self._place(site, sites.row(site))
            if place is None or seq < 0:
                continue
            key, of_place = place
            known = self._of.setdefault(key, [0, 0, 0])
            known[0] += 1
            known[1] = max(known[1], seq + 1)
            known[2] = added(known[2], hash_of_call(of_place, seq))

    def _place(self, site: int, row: tuple[Any, ...] | None) -> tuple[tuple[int, str], int] | None:
        if len(self._places) >= _MAX_SITES:
            self._places.clear()
        place = None
        if row is not None:
            values = dict(zip(_SITE_NAMES, row, strict=True))
            if values["kind"] not in _TRANSFERS:
                of_place = hash_of_place(tuple(values[name] for name in PLACE))
                place = (values["rank"], values["group"]), of_place
        self._places[site] = place
        return place

    def rows(self) -> Rows:
        """Return rows of table `removed_calls`."""
        return [(*key, *values) for key, values in self._of.items()]


class SegmentedWriter:
    """Appends batches like `SpoolWriter`, in segments of about `segment_bytes`; not thread-safe.

    Args:
        stream: the first segment.
        facts: first facts.
        segment_bytes: size from which on the next batch begins a segment.
        open_segment: opens the stream of a segment by number, and drops all but the last two.
        clock: returns the time of the recording in Unix ns.
    """

    def __init__(
        self,
        stream: BinaryIO,
        facts: Mapping[str, Any],
        *,
        segment_bytes: int,
        open_segment: OpenSegment,
        clock: Callable[[], int],
    ) -> None:
        self._segment_bytes = segment_bytes
        self._open_segment = open_segment
        self._clock = clock
        self._facts = dict(facts)
        self._taken_for: list[int] = []
        self._groups: dict[str, tuple[Any, ...]] = {}
        self._unwritten_groups: dict[str, tuple[Any, ...]] = {}
        self._written = _Written()
        self._unwritten_calls: Rows = ()
        self._sites = {table: _Sites(table) for table in NUMBERS}
        self._num_written = dict.fromkeys(NUMBERS, 0)
        self._segment = 0
        self._has_batch = False
        self._last_write_ns = clock()
        self._streams = [stream]
        self._writer = SpoolWriter(stream, {**self._facts, **self._of_segment(0)})

    def write(
        self,
        tables: Mapping[str, Rows],
        facts: Mapping[str, Any] | None = None,
        numbers: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Append rows of any tables, facts, and the numbers of events, as a batch.

        Raises:
            OSError: writing failed; the file is unchanged, and another batch may be tried.
        """
        at = self._clock()
        # The facts alone may exceed the size of a segment.
        if self._has_batch and self._writer.num_bytes > self._segment_bytes:
            self._begin_segment()
        groups = {row[0]: row for row in tables.get("groups", ())}
        known = {**tables, "groups": list({**self._unwritten_groups, **groups}.values())}
        flat: dict[str, Sequence[int]] = dict(numbers or {})
        for table, sites in self._sites.items():
            name = sites_of(table)
            known[name], flat[table] = sites.needed(tables.get(name, ()), flat.get(table, ()))
        self._writer.write({"removed_calls": self._unwritten_calls, **known}, facts, flat)
        self._groups.update(groups)
        self._unwritten_groups = {}
        self._unwritten_calls = ()
        self._written.add((numbers or {}).get("comm", ()), self._sites["comm"])
        for table, sites in self._sites.items():
            sites.written()
            self._num_written[table] += len(flat[table]) // len(NUMBERS[table])
        self._learn(facts or {})
        self._has_batch = True
        self._last_write_ns = at

    def write_instead(self, facts: Callable[[Mapping[str, int]], Mapping[str, Any]]) -> None:
        """Write last facts over the last batches of the segment; see `SpoolWriter`."""
        self._writer.write_instead(facts)

    def contents(self) -> list[bytes]:
        """Return the contents of each segment that is kept."""
        return [contents_of(stream) for stream in self._streams]

    def close(self) -> None:
        """Close the files."""
        for stream in self._streams:
            stream.close()

    def _learn(self, facts: Mapping[str, Any]) -> None:
        rank = self._facts["rank"]
        if facts.get("rank", rank) != rank:
            self._taken_for.append(rank)
        self._facts.update(facts)

    def _of_segment(self, number: int) -> dict[str, Any]:
        return {
            SEGMENT: number,
            BEGIN: self._last_write_ns,
            BEFORE: [self._num_written["comm"], self._num_written["ops"]],
            TAKEN_FOR: self._taken_for,
        }

    def _begin_segment(self) -> None:
        number = self._segment + 1
        stream = self._open_segment(number)
        try:
            writer = SpoolWriter(stream, {**self._facts, **self._of_segment(number)})
        except OSError:
            stream.close()
            raise
        self._segment, self._writer, self._has_batch = number, writer, False
        for stale in self._streams[:-1]:
            stale.close()
        self._streams = [self._streams[-1], stream]
        self._unwritten_groups = dict(self._groups)
        self._unwritten_calls = self._written.rows()
        for sites in self._sites.values():
            sites.begin_segment()
