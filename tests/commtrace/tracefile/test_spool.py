"""A spool reads back all that was written, up to the point where a process was killed."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtrace.errors import (
    EmptyTraceError,
    NewerTraceError,
    NotATraceError,
    TruncatedTraceError,
)
from commtrace.event import CommEvent
from commtrace.schema import FORMAT_VERSION, TABLES
from commtrace.tracefile import OUTSTANDING, SpoolWriter, parse_spool, sites_of, spool_name
from commtrace.tracefile.spool import NUMBERS, SITES
from tests.commtrace.tracefile.tables import tables


def written(*batches: dict[str, Any], facts: dict[str, Any] | None = None) -> bytes:
    stream = io.BytesIO()
    writer = SpoolWriter(stream, facts or {"rank": 0})
    for batch in batches:
        writer.write(batch)
    return stream.getvalue()


def comm(*ids: int, **fields: Any) -> dict[str, list[Any]]:
    return {"comm": [CommEvent(rank=0, id=i, **fields) for i in ids]}


@given(st.lists(tables(), max_size=4))
def test_batches_come_back_joined_in_the_order_of_their_ids(batches: list[dict]) -> None:
    spool = parse_spool(written(*batches))
    for name, columns in TABLES.items():
        rows = [row for batch in batches for row in batch[name]]
        back = list(zip(*spool.tables[name].values(), strict=True))
        names = [column.name for column in columns]
        key = names.index("id") if "id" in names else None
        assert sorted(map(repr, map(_plain, back))) == sorted(map(repr, map(_plain, rows)))
        if key is None:
            assert [_plain(row) for row in back] == [_plain(row) for row in rows]
        elif len({row[0] for row in back}) == 1:
            assert [row[key] for row in back] == sorted(row[key] for row in rows)


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(int(value) if isinstance(value, bool) else value for value in row)


@given(tables(), st.lists(tables(), max_size=3))
def test_events_written_as_numbers_and_sites_are_restored(first: dict, more: list[dict]) -> None:
    stream = io.BytesIO()
    writer = SpoolWriter(stream, {"rank": 0})
    places: dict[str, list[Any]] = {name: [] for name in NUMBERS}
    for batch in (first, *more):
        new, numbers = {}, {}
        for name, known in places.items():
            of_site = [TABLES[name].index(column) for column in SITES[name]]
            of_each = [TABLES[name].index(column) for column in NUMBERS[name][:-1]]
            flat: list[int] = []
            before = len(known)
            for row in batch[name]:
                site = tuple([row[place] for place in of_site])
                if site not in known:
                    known.append(site)
                flat += (*[row[place] for place in of_each], known.index(site))
            new[sites_of(name)], numbers[name] = known[before:], flat
        writer.write(new, numbers=numbers)
    spool = parse_spool(stream.getvalue())
    for name in places:
        rows = [row for batch in (first, *more) for row in batch[name]]
        back = list(zip(*spool.tables[name].values(), strict=True))
        assert sorted(map(repr, map(_plain, back))) == sorted(map(repr, map(_plain, rows)))


def test_facts_add_up() -> None:
    stream = io.BytesIO()
    writer = SpoolWriter(stream, {"rank": 3, "complete": False})
    writer.write({}, {"complete": True})
    assert parse_spool(stream.getvalue()).facts == {"rank": 3, "complete": True}


@given(st.data())
def test_a_truncated_spool_is_read_up_to_its_last_complete_batch(data: st.DataObject) -> None:
    first, full = written(comm(0, 1)), written(comm(0, 1), comm(2))
    assert full.startswith(first)
    truncated = data.draw(st.integers(len(first), len(full) - 1))
    spool = parse_spool(full[:truncated])
    assert list(spool.tables["comm"]["id"]) == [0, 1]
    assert spool.is_truncated == (truncated > len(first))


@given(st.data())
def test_a_damaged_batch_and_what_follows_is_left_out(data: st.DataObject) -> None:
    first, full = written(comm(0)), bytearray(written(comm(0), comm(1)))
    full[data.draw(st.integers(len(first), len(full) - 1))] ^= 0x55
    spool = parse_spool(bytes(full))
    assert list(spool.tables["comm"]["id"]) == [0]
    assert spool.is_truncated


def test_a_call_that_is_not_over_is_reported_until_it_is() -> None:
    pending = [CommEvent(rank=0, id=1, kind="all_reduce")]
    over = [CommEvent(rank=0, id=1, kind="all_reduce", call_ns=5)]
    while_waiting = written(comm(0), {OUTSTANDING: pending})
    afterwards = written(comm(0), {OUTSTANDING: pending}, comm(2), {"comm": over})
    spool = parse_spool(while_waiting)
    assert list(spool.tables["comm"]["call_ns"]) == [-1, -1]
    spool = parse_spool(afterwards)
    assert list(spool.tables["comm"]["id"]) == [0, 1, 2]
    assert list(spool.tables["comm"]["call_ns"]) == [-1, 5, -1]


class Disk(io.BytesIO):
    """A stream that takes a few bytes at a time, and no more than `room`."""

    room = 1 << 20

    def write(self, data: Any) -> int:
        if self.tell() + 1 > self.room:
            raise OSError(28, "No space left on device")
        return super().write(bytes(data[: min(7, self.room - self.tell())]))


def test_a_batch_that_does_not_fit_leaves_no_trace_and_the_next_one_is_complete() -> None:
    disk = Disk()
    writer = SpoolWriter(disk, {"rank": 0})  # type: ignore[arg-type]
    writer.write(comm(0, kind="send"))
    before = disk.getvalue()
    disk.room = len(before) + 20
    with pytest.raises(OSError, match="No space left"):
        writer.write(comm(1, kind="recv"))
    assert disk.getvalue() == before
    disk.room = 1 << 20
    writer.write(comm(2, kind="recv"))
    spool = parse_spool(disk.getvalue())
    assert not spool.is_truncated
    assert list(spool.tables["comm"]["id"]) == [0, 2]
    assert list(spool.tables["comm"]["kind"]) == ["send", "recv"]


def test_a_string_is_stored_once_in_all_batches() -> None:
    reason = random.Random(0).randbytes(500).hex()
    once = written(comm(0, reason=reason))
    assert len(written(comm(0, reason=reason), comm(1, reason=reason))) - len(once) < len(reason)


@pytest.mark.parametrize("version", range(1, FORMAT_VERSION))
def test_a_spool_of_an_older_version_is_read(version: int) -> None:
    new, old = (b"commtrace-spool %d\n" % each for each in (FORMAT_VERSION, version))
    data = written(comm(0))
    assert data.startswith(new)
    data = old + data.removeprefix(new)
    assert list(parse_spool(data).tables["comm"]["id"]) == [0]


def test_a_spool_of_a_newer_version_is_refused_by_its_number() -> None:
    with pytest.raises(NewerTraceError) as error:
        parse_spool(
            b"commtrace-spool %d\nwhatever" % (FORMAT_VERSION + 1), Path("rank-00000.spool")
        )
    assert str(error.value) == (
        "cannot read the spool rank-00000.spool\n"
        f"  found: version {FORMAT_VERSION + 1} of the format\n"
        f"  why: this commtrace supports versions up to {FORMAT_VERSION}\n"
        "  try: install the commtrace that recorded it, or a newer version"
    )


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", EmptyTraceError),
        (b"Hello, world\n", NotATraceError),
        (b"\x80\x04pickle", NotATraceError),
        (b"commtrace-sp", TruncatedTraceError),
        (b"commtrace-spool 1\n", TruncatedTraceError),
        (b"commtrace-spool 1\n\x10\0\0\0", TruncatedTraceError),
    ],
)
def test_what_is_no_spool_is_refused(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_spool(data, Path("x.spool"))


def test_names_sort_like_ranks() -> None:
    assert sorted([spool_name(10), spool_name(9)]) == [spool_name(9), spool_name(10)]


@pytest.mark.parametrize("room", [0, 30, 60, 90, 120, 400])
def test_last_facts_take_the_place_of_the_last_batches_on_a_full_disk(room: int) -> None:
    disk = Disk()
    writer = SpoolWriter(disk, {"rank": 0})
    for number in range(3):
        sites = {sites_of("comm"): [SITE]} if number == 0 else {}
        writer.write(sites, None, {"comm": [number, *[0] * (len(NUMBERS["comm"]) - 1)]})
    disk.room = writer.num_bytes + room
    last = {"end": "x" * 60, "num_dropped": 0}
    try:
        writer.write({}, last)
    except OSError:
        writer.write_instead(lambda lost: {**last, "num_dropped": lost["comm"]})
    spool = parse_spool(disk.getvalue())
    assert spool.facts["end"] == last["end"]
    assert len(spool.tables["comm"]["id"]) + spool.facts["num_dropped"] == 3
    assert not spool.is_truncated
    assert (spool.facts["num_dropped"] > 0) or room > 0


def test_a_disk_without_room_for_the_last_facts_is_an_error() -> None:
    disk = Disk()
    writer = SpoolWriter(disk, {"rank": 0})
    disk.room = writer.num_bytes
    with pytest.raises(OSError, match="No space left"):
        writer.write_instead(lambda lost: {"end": "x" * 60})
    assert parse_spool(disk.getvalue()).facts == {"rank": 0}


SITE = tuple(["" if column.type is str else 0 for column in SITES["comm"]])
