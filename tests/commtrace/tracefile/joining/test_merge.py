"""Merging spools: independent of the order of files; clocks align; missing ranks are named."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commtrace.errors import EmptyTraceError, NotATraceError, TraceError, TruncatedTraceError
from commtrace.event import CommEvent, GroupRow, OpEvent, RankRow, StepRow
from commtrace.tracefile import (
    SpoolWriter,
    Trace,
    join,
    merge_spools,
    parse_spool,
    read_trace,
    spool_name,
)
from commtrace.tracefile.spool import BATCH, FIRST_LINE
from tests.commtrace.synthetic import (
    START_NS,
    synthetic_facts,
    write_synthetic_run,
    write_synthetic_spools,
)


def spool(rank: int, *batches: dict[str, Any], world_size: int = 2, **facts: Any) -> Any:
    stream = io.BytesIO()
    writer = SpoolWriter(stream, synthetic_facts(rank, world_size) | facts)
    for batch in batches:
        writer.write(batch)
    return parse_spool(stream.getvalue(), Path(spool_name(rank)))


def ranks(trace: Trace) -> list[Any]:
    return [RankRow(*row) for row in trace.rows("ranks")]


def test_ranks_come_in_order_whatever_the_order_of_the_spools() -> None:
    spools = [
        spool(rank, {"comm": [CommEvent(rank=rank, id=0)]}, world_size=5) for rank in range(5)
    ]
    expected = join(spools)
    assert list(expected.tables["comm"]["rank"]) == [0, 1, 2, 3, 4]
    random.Random(0).shuffle(spools)
    assert join(spools).tables == expected.tables


def test_nothing_is_lost_or_added(tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "spools", world_size=3)
    merged = read_trace(merge_spools(folder, tmp_path / "run.json"))
    for name in ("comm", "ops", "steps"):
        rows = [
            row
            for path in sorted(folder.iterdir())
            for row in join([parse_spool(path.read_bytes())]).rows(name)
        ]
        assert len(rows) == merged.num_rows(name)
    assert sum(merged.tables["comm"]["payload_bytes"]) == 3 * 30 * 512


def test_a_folder_of_spools_reads_like_its_merged_file(tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "spools")
    merged = read_trace(merge_spools(folder, tmp_path / "run.json"))
    read = read_trace(folder)
    assert (read.run, read.tables) == (merged.run, merged.tables)


def test_ranks_that_share_a_clock_are_put_on_one_scale() -> None:
    # Rank 1 has the same clock, but its estimate of the epoch is 40 ns later.
    batch = {
        "comm": [CommEvent(rank=1, id=0, issue_ns=1000, call_ns=7, complete_ns=-1)],
        "ops": [OpEvent(rank=1, start_ns=2000, duration_ns=9)],
        "steps": [StepRow(1, 0, 3000, 4000)],
    }
    trace = join([spool(0, epoch_ns=100), spool(1, batch, epoch_ns=60, start_ns=500)])
    comm, ops, steps = (trace.tables[name] for name in ("comm", "ops", "steps"))
    assert (list(comm["issue_ns"]), list(comm["call_ns"])) == ([1040], [7])
    assert list(comm["complete_ns"]) == [-1]  # unknown stays unknown
    assert (list(ops["start_ns"]), list(ops["duration_ns"])) == ([2040], [9])
    assert (list(steps["start_ns"]), list(steps["end_ns"])) == ([3040], [4040])
    assert (ranks(trace)[1].start_ns, ranks(trace)[1].clock_offset_ns) == (540, 40)
    assert trace.run["clock"] == "one clock"


def test_ranks_of_other_hosts_keep_their_own_time() -> None:
    batch = {"comm": [CommEvent(rank=1, id=0, issue_ns=1000)]}
    trace = join([spool(0, epoch_ns=100), spool(1, batch, epoch_ns=60, boot="two")])
    assert list(trace.tables["comm"]["issue_ns"]) == [1000]
    assert ranks(trace)[1].clock_offset_ns == 0
    assert trace.run["clock"] == "wall clocks of several hosts"


def test_a_rank_without_a_spool_is_named() -> None:
    trace = join([spool(0, world_size=4), spool(2, world_size=4)])
    assert trace.run["missing_ranks"] == [1, 3]
    assert [row.rank for row in ranks(trace)] == [0, 2]


def test_a_rank_that_did_not_close_its_recording_is_named_and_ends_with_its_last_event() -> None:
    events = [CommEvent(rank=1, id=0, issue_ns=START_NS + 5, complete_ns=START_NS + 70)]
    closed = spool(0, {}, epoch_ns=0, complete=True, end_ns=START_NS + 99)
    trace = join([closed, spool(1, {"comm": events}, epoch_ns=0)])
    assert trace.run["torn_ranks"] == [1]
    assert [(row.end_ns - START_NS, bool(row.complete)) for row in ranks(trace)] == [
        (99, True),
        (70, False),
    ]


def test_a_rank_whose_spool_breaks_off_is_named_although_it_says_to_be_complete() -> None:
    cut = replace(spool(1, complete=True), is_truncated=True)
    trace = join([spool(0, complete=True), cut])
    assert trace.run["torn_ranks"] == [1]
    assert [row.complete for row in ranks(trace)] == [True, False]


def test_the_run_has_the_facts_of_the_first_rank() -> None:
    trace = join([spool(1), spool(0)])
    assert trace.run["command"] == "train.py --steps 3"
    assert trace.run["world_size"] == 2


def test_groups_that_several_ranks_know_are_one_row() -> None:
    known = {"groups": [GroupRow("0", "default_pg", "0,1", 2, "", "gloo")]}
    with_axis = {"groups": [GroupRow("0", "default_pg", "0,1", 2, "tp", "gloo")]}
    trace = join([spool(0, known), spool(1, with_axis)])
    assert [GroupRow(*row) for row in trace.rows("groups")] == [with_axis["groups"][0]]


def test_groups_of_one_name_and_other_ranks_are_distinguished() -> None:
    def batch(rank: int, members: str) -> dict[str, Any]:
        return {
            "groups": [GroupRow("5", "dp", members, 2, "dp", "gloo")],
            "comm": [CommEvent(rank=rank, id=0, group="5")],
        }

    trace = join([spool(0, batch(0, "0,2")), spool(1, batch(1, "1,3"))])
    assert list(trace.tables["groups"]["name"]) == ["5 [0,2]", "5 [1,3]"]
    assert list(trace.tables["comm"]["group"]) == ["5 [0,2]", "5 [1,3]"]


def test_two_spools_of_one_rank_are_refused_by_name() -> None:
    with pytest.raises(TraceError, match=r"two of rank 1: .*rank-00001\.spool and .*rank-00001"):
        join([spool(1), spool(0), spool(1)])


def test_a_rank_killed_before_it_had_written_is_missing(tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "spools", world_size=4)
    data = (folder / spool_name(1)).read_bytes()
    for rank, size in ((1, 0), (2, 7), (3, 40)):
        (folder / spool_name(rank)).write_bytes(data[:size])
    assert read_trace(folder).run["missing_ranks"] == [1, 2, 3]
    (folder / spool_name(0)).unlink()
    with pytest.raises(EmptyTraceError, match=spool_name(1)):
        read_trace(folder)


def test_a_rank_whose_first_batch_is_damaged_is_refused_by_name_and_not_called_killed(
    tmp_path: Path,
) -> None:
    folder = write_synthetic_spools(tmp_path / "spools", world_size=2)
    path = folder / spool_name(1)
    data = bytearray(path.read_bytes())
    data[len(FIRST_LINE) + BATCH.size + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(TruncatedTraceError) as error:
        read_trace(folder)
    assert str(error.value) == (
        f"cannot read the spool {path}\n"
        f"  at: byte {len(FIRST_LINE)}\n"
        "  found: a batch that differs from its checksum\n"
        "  why: the file was truncated or modified after it was written\n"
        "  try: copy it again, or record the run again"
    )


def test_a_file_that_is_no_spool_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "spools", world_size=2)
    (folder / spool_name(1)).write_bytes(b"something else entirely\n")
    with pytest.raises(NotATraceError, match=spool_name(1)):
        read_trace(folder)


def test_a_folder_without_spools_is_reported_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(EmptyTraceError) as error:
        merge_spools(tmp_path, tmp_path / "run.json")
    assert "a folder without a *.spool file" in str(error.value)
    assert not (tmp_path / "run.json").exists()


def test_one_spool_reads_as_a_trace_of_its_own(tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "spools")
    trace = read_trace(folder / spool_name(2))
    assert set(trace.tables["comm"]["rank"]) == {2}
    assert trace.run["missing_ranks"] == [0, 1, 3]


def test_a_made_up_run_on_cpu_has_rows_in_every_table_of_a_recording(tmp_path: Path) -> None:
    trace = read_trace(write_synthetic_run(tmp_path / "run.json"))
    assert [name for name in trace.tables if not trace.num_rows(name)] == [
        "kernels", "syncs", "communicators", "removed_calls",
    ]  # fmt: skip


def write_spool(
    folder: Path,
    rank: int,
    number: int,
    start_ns: int,
    end_ns: int,
    backend: str = "gloo",
    num_ranks: int = 1,
) -> str:
    """Write a spool of some process, and return its name."""
    name = f"rank-{rank:05d}.{number}.spool"
    facts: dict[str, Any] = synthetic_facts(rank, num_ranks) | {
        "start_ns": start_ns,
        "end_ns": end_ns,
        "pid": number,
    }
    facts["run"] = {**facts["run"], "process_group": backend}
    with (folder / name).open("wb") as stream:
        SpoolWriter(stream, facts)
    return name


def pids(trace: Trace) -> list[int]:
    return [row.pid for row in ranks(trace)]


def test_a_process_that_started_the_ranks_is_none_itself(tmp_path: Path) -> None:
    write_spool(tmp_path, 0, 1, START_NS, START_NS + 100, "none")
    for rank in range(2):
        write_spool(tmp_path, rank, 2 + rank, START_NS + 10, START_NS + 90)
    trace = read_trace(tmp_path)
    assert pids(trace) == [2, 3]
    assert "left_out_spools" not in trace.run
    assert trace.run["process_group"] == "gloo"


def test_a_process_that_communicated_is_a_rank_whoever_it_started(tmp_path: Path) -> None:
    for number in (1, 2):
        write_spool(tmp_path, 0, number, START_NS + number, START_NS + 100)
    with pytest.raises(TraceError, match="two of rank 0"):
        read_trace(tmp_path)


def test_of_consecutive_runs_the_last_is_read_completely(tmp_path: Path) -> None:
    """The run before had more ranks: none of them is taken for a rank of the last run."""
    write_spool(tmp_path, 0, 1, START_NS, START_NS + 200, "none")
    earlier = [write_spool(tmp_path, r, 2 + r, START_NS + 10, START_NS + 50) for r in range(3)]
    for rank in range(2):
        write_spool(tmp_path, rank, 5 + rank, START_NS + 60, START_NS + 90)
    trace = read_trace(tmp_path)
    assert pids(trace) == [5, 6]
    assert trace.run["left_out_spools"] == earlier


@pytest.mark.parametrize(
    ("num_ranks", "start_ns", "left_out"),
    [
        (2, START_NS + 1000, True),
        (4, START_NS + 1000, False),  # a rank of the same run may have ended before
        (2, START_NS + 90, False),  # at the same time
    ],
)
def test_ranks_of_an_earlier_run_of_another_size_are_left_out_although_none_is_repeated(
    tmp_path: Path, num_ranks: int, start_ns: int, left_out: bool
) -> None:
    earlier = [
        write_spool(tmp_path, rank, 1 + rank, START_NS, START_NS + 100, num_ranks=num_ranks)
        for rank in range(2)
    ]
    for rank in (2, 3):
        write_spool(tmp_path, rank, 5 + rank, start_ns, start_ns + 100, num_ranks=4)
    trace = read_trace(tmp_path)
    assert trace.run.get("left_out_spools", []) == (earlier if left_out else [])
    assert trace.run["missing_ranks"] == ([0, 1] if left_out else [])
    assert trace.run["world_size"] == 4


def test_what_an_earlier_run_left_is_left_out_and_reported(tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "spools", world_size=2)
    (folder / spool_name(1)).rename(folder / "rank-00001.77.spool")
    earlier = synthetic_facts(1, 2) | {"start_ns": START_NS - 1000, "end_ns": START_NS - 1}
    with (folder / spool_name(1)).open("wb") as stream:
        SpoolWriter(stream, earlier)
    trace = read_trace(folder)
    assert trace.run["left_out_spools"] == [spool_name(1)]
    assert trace.run["missing_ranks"] == []
    assert trace.tables["ranks"]["num_events"][1] > 0
