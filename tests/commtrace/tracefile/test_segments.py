"""Segments hold the last events of a recording, and are read as one; lost events are counted."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from commtrace.errors import TraceError
from commtrace.event import CommEvent, GroupRow, StepRow
from commtrace.schema import TABLES
from commtrace.tracefile import (
    OUTSTANDING,
    SegmentedWriter,
    Trace,
    join,
    joined_segments,
    parse_spool,
    read_parts,
    sites_of,
)
from commtrace.tracefile.destinations import RunFolder, SpoolFolder
from commtrace.tracefile.spool import NUMBERS, SITES, Spool
from tests.commtrace.synthetic import START_NS, synthetic_facts

GROUP = GroupRow("g", "", "0,1", 2, "", "gloo")
SITE_COLUMNS = [column.name for column in SITES["comm"]]
NUMBER_COLUMNS = [column.name for column in NUMBERS["comm"]][:-1]


class File(io.BytesIO):
    """A file whose contents stay when it is closed."""

    def close(self) -> None:
        """Do nothing."""


class Rank:
    """Writes calls of two call sites in turn, a batch each, to segments in memory."""

    def __init__(self, segment_bytes: int = 1, **facts: Any) -> None:
        self.segments = [File()]
        self.num_calls = 0
        clock = count(START_NS)
        self.writer = SegmentedWriter(
            self.segments[0],
            synthetic_facts(0, 2) | facts,
            segment_bytes=segment_bytes,
            open_segment=self._open,
            clock=lambda: next(clock),
        )
        self._num_sites = 0

    def _open(self, number: int) -> File:
        assert number == len(self.segments)
        self.segments.append(File())
        return self.segments[-1]

    def call(self, *, waiting: tuple[int, ...] = (), **tables: Any) -> None:
        """Write a batch with the next call, and those in progress."""
        site = self.num_calls % 2
        sites = []
        if site == self._num_sites:
            row = CommEvent(rank=0, kind=f"kind{site}", group="g")
            sites = [tuple(getattr(row, name) for name in SITE_COLUMNS)]
            self._num_sites += 1
        number = CommEvent(rank=0, id=self.num_calls, seq=self.num_calls, issue_ns=START_NS)
        outstanding = [CommEvent(rank=0, id=n, seq=n, kind="waits", group="g") for n in waiting]
        self.writer.write(
            {
                sites_of("comm"): sites,
                "groups": [] if self.num_calls else [GROUP],
                OUTSTANDING: outstanding,
                **tables,
            },
            numbers={"comm": [*(getattr(number, name) for name in NUMBER_COLUMNS), site]},
        )
        self.num_calls += 1

    def spools(self, *numbers: int) -> list[Spool]:
        return [parse_spool(self.segments[number].getvalue()) for number in numbers]


def joined(spools: list[Spool]) -> Trace:
    return join(joined_segments(spools))


def ids(trace: Trace) -> list[int]:
    return list(trace.tables["comm"]["id"])


def dropped(trace: Trace) -> int:
    (num,) = trace.tables["ranks"]["num_dropped"]
    return num


def test_each_segment_can_be_read_by_itself() -> None:
    rank = Rank()
    for _ in range(6):
        rank.call()
    assert len(rank.segments) == 6
    for number, spool in enumerate(rank.spools(*range(2, 6)), start=2):
        trace = joined([spool])
        assert ids(trace) == [number]
        assert list(trace.tables["comm"]["kind"]) == [f"kind{number % 2}"]
        assert list(trace.tables["groups"]["name"]) == ["g"]
        assert dropped(trace) == number


def test_the_last_segments_are_one_recording() -> None:
    rank = Rank()
    for _ in range(6):
        rank.call()
    trace = joined(rank.spools(4, 5))
    assert ids(trace) == [4, 5]
    assert list(trace.tables["comm"]["kind"]) == ["kind0", "kind1"]
    assert dropped(trace) == 4
    assert trace.num_rows("ranks") == 1
    assert len(rank.writer.contents()) == 2
    assert ids(joined(rank.spools(*range(6)))) == list(range(6))
    assert dropped(joined(rank.spools(*range(6)))) == 0


def test_copies_of_segments_count_once() -> None:
    rank = Rank()
    for _ in range(4):
        rank.call()
    trace = joined(rank.spools(3, 2, 3, 2))
    assert (ids(trace), dropped(trace)) == ([2, 3], 2)


def test_a_call_in_progress_over_an_end_appears_once() -> None:
    rank = Rank()
    rank.call()
    rank.call(waiting=(7, 9))
    rank.call(waiting=(9,))
    rank.num_calls = 7
    rank.call(waiting=(9,))
    trace = joined(rank.spools(0, 1, 2, 3))
    assert ids(trace) == [0, 1, 2, 7, 9]
    assert dropped(trace) == 0
    kinds = dict(zip(ids(trace), trace.tables["comm"]["kind"], strict=True))
    assert (kinds[7], kinds[9]) == ("kind1", "waits")


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_what_a_middle_segment_had_counts_as_dropped(damage: str) -> None:
    rank = Rank()
    for _ in range(5):
        rank.call()
    rank.writer.write({}, {"complete": True, "end_ns": START_NS})
    spools = rank.spools(2, 4, 5)
    assert joined(rank.spools(2, 3, 4, 5)).run["torn_ranks"] == []
    if damage == "truncated":
        cut = rank.segments[3].getvalue()[:-1]
        spools.append(parse_spool(cut))
    trace = joined(spools)
    assert (ids(trace), dropped(trace)) == ([2, 4], 3)
    assert trace.run["torn_ranks"] == [0]
    assert not trace.tables["ranks"]["complete"][0]


def test_a_step_of_which_the_beginning_is_gone_is_not_listed() -> None:
    rank = Rank()
    rank.call()
    rank.call(steps=[StepRow(0, 0, START_NS - 9, START_NS)])
    rank.call(steps=[StepRow(0, 1, START_NS - 5, START_NS + 9)])
    rank.call(steps=[StepRow(0, 2, START_NS + 9, START_NS + 19)])
    assert list(joined(rank.spools(2, 3)).tables["steps"]["step"]) == [2]
    assert list(joined(rank.spools(0, 1, 2, 3)).tables["steps"]["step"]) == [0, 1, 2]
    # The time of the rank begins with what is there.
    begun = joined(rank.spools(2, 3)).tables["ranks"]["start_ns"][0]
    assert begun > joined(rank.spools(0, 1, 2, 3)).tables["ranks"]["start_ns"][0]


def test_a_batch_that_could_not_be_written_may_be_tried_again() -> None:
    rank = Rank(segment_bytes=10_000)

    def fail(data: Any) -> int:
        raise OSError("no space")

    rank.call()
    stream: Any = rank.segments[0]
    inner: Any = rank.writer._writer
    inner._stream = type(
        "Full", (), {"write": staticmethod(fail), "seek": stream.seek, "truncate": stream.truncate}
    )()
    with pytest.raises(OSError, match="no space"):
        rank.call()
    inner._stream = stream
    rank._num_sites = 1
    rank.call()
    assert list(joined(rank.spools(0)).tables["comm"]["kind"]) == ["kind0", "kind1"]


def test_facts_of_earlier_segments_and_the_former_rank_are_known() -> None:
    rank = Rank()
    rank.call()
    run = synthetic_facts(0, 2)["run"]
    rank.writer.write({}, {"rank": 3, "run": {**run, "world_size": 4}})
    rank.writer.write(
        {"ops": [tuple(0 if column.type is not str else "" for column in TABLES["ops"])]}
    )
    (spool,) = rank.spools(2)
    assert spool.facts["rank"] == 3
    assert spool.facts["run"]["world_size"] == 4
    assert list(spool.tables["ops"]["rank"]) == [3]
    assert [fact[0] for fact in spool.facts["sources"]] == ["train.py"]


@pytest.mark.parametrize(
    ("make", "first"),
    [(SpoolFolder, "rank-00000"), (RunFolder, "rank-00000")],
)
def test_a_folder_keeps_two_segments(
    make: Callable[[Path], SpoolFolder], first: str, tmp_path: Path
) -> None:
    folder = tmp_path / "RUN.comm"
    store = make(folder)
    store.open(0).close()
    for number in range(1, 5):
        store.open_segment(number).close()
    store.close(0, 1)
    assert sorted(path.name for path in folder.glob("rank*")) == [
        f"{first}.s3.done", f"{first}.s3.spool", f"{first}.s4.done", f"{first}.s4.spool",
    ]  # fmt: skip


def test_a_later_recording_of_the_rank_does_not_reuse_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "RUN.comm"
    for attempt in range(2):
        start = START_NS + 10**9 * attempt
        store = RunFolder(folder)
        stream = store.open(0)
        writer = SegmentedWriter(
            stream,
            synthetic_facts(0, 1) | {"start_ns": start, "pid": 99_999_999},
            segment_bytes=1,
            open_segment=store.open_segment,
            clock=count(start).__next__,
        )
        for _ in range(4):
            writer.write({}, {"end_ns": start + 9})
        writer.close()
        store.close(0, 1)
    assert sorted(path.name for path in folder.glob("*.spool")) == [
        "rank-00000.1.s2.spool", "rank-00000.1.s3.spool",
        "rank-00000.s2.spool", "rank-00000.s3.spool",
    ]  # fmt: skip
    trace = read_parts([folder])
    assert trace.run["left_out_spools"] == ["rank-00000.s2.spool", "rank-00000.s3.spool"]


def test_a_kill_at_any_byte_of_a_segment_leaves_a_readable_run(tmp_path: Path) -> None:
    rank = Rank()
    for _ in range(5):
        rank.call()
    before, newest = (rank.segments[number].getvalue() for number in (3, 4))
    (tmp_path / "rank-00000.s3.spool").write_bytes(before)
    for length in range(0, len(newest), 7):
        (tmp_path / "rank-00000.s4.spool").write_bytes(newest[:length])
        trace = read_parts([tmp_path])
        # The first calls are gone, also if no batch of the newest segment says so.
        assert (ids(trace), dropped(trace)) == ([3], 3)
        assert trace.run["torn_ranks"] == [0]


def test_a_wrong_fact_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.spool"
    with open(path, "w+b") as stream:
        SegmentedWriter(
            stream,
            synthetic_facts(0, 1),
            segment_bytes=10_000,
            open_segment=lambda number: stream,
            clock=lambda: START_NS,
        ).write({}, {"num_before": [1]})
    with pytest.raises(TraceError, match="num_before"):
        read_parts([path])
