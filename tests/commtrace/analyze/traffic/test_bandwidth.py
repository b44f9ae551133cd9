"""Bandwidth with the wait for late ranks and without it, computed by hand."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan
from typing import Any

import pytest

from benchmarks.large_run import BYTES_PER_S, large_trace
from commtrace.analyze import CATALOG, Frames, load
from commtrace.analyze.traffic.bandwidth import bandwidth
from commtrace.settings import Settings, speeds_of_links
from tests.benchmarks.test_large_run import PLAN
from tests.commtrace.analyze.rows import call, group, run_of

SIZE = 1_000_000


def collective(kind: str, arrivals: list[int], ends: list[int], **shared: Any) -> list[Any]:
    """One collective of 1 MB at which rank r arrives at `arrivals[r]` and leaves at `ends[r]`."""
    return [
        call(rank=rank, kind=kind, at=at, until=end, blocked_ns=end - at,
             **({"seq": 0, "id": 0, "payload_bytes": SIZE} | shared))
        for rank, (at, end) in enumerate(zip(arrivals, ends, strict=True))
    ]  # fmt: skip


def row_of(calls: list[Any], **more: Any) -> dict[Any, Any]:
    (row,) = bandwidth(run_of(calls, **more)).to_dict("records")
    return row


def rates(row: dict[Any, Any]) -> list[float]:
    names = ("algbw", "busbw", "algbw_after_arrival", "busbw_after_arrival")
    return [row[f"{name}_bytes_per_s"] for name in names]


@pytest.mark.parametrize(("kind", "factor"), [("all_reduce", 1.0), ("all_gather", 0.5)])
def test_the_wait_for_the_last_rank_is_no_transfer(kind: str, factor: float) -> None:
    row = row_of(collective(kind, [0, 60_000], [100_000, 110_000]))
    assert (row["num_calls"], row["num_timed"], row["num_after_arrival"]) == (2, 2, 2)
    assert (row["time_ns"], row["after_arrival_ns"]) == (150_000, 40_000 + 50_000)
    with_wait, after = 2 * SIZE / 150e-6, 2 * SIZE / 90e-6
    assert rates(row) == pytest.approx([with_wait, with_wait * factor, after, after * factor])
    assert row["from_bytes"] == 1 << 19


def test_receivers_of_a_broadcast_need_the_root_only() -> None:
    # The root arrives at 20 µs, rank 1 before it and rank 2 after it; its own call ends early.
    calls = collective("broadcast", [20_000, 0, 70_000], [30_000, 90_000, 100_000], root=0)
    row = row_of(calls, num_ranks=3)
    assert row["after_arrival_ns"] == 10_000 + 70_000 + 30_000
    assert row["busbw_after_arrival_bytes_per_s"] == pytest.approx(3 * SIZE / 110e-6)


def test_of_a_reduction_only_the_root_needs_the_others() -> None:
    row = row_of(collective("reduce", [0, 60_000], [100_000, 80_000], root=0))
    assert row["after_arrival_ns"] == 40_000 + 20_000


def test_a_transfer_needs_its_other_end() -> None:
    calls = [
        call(rank=0, kind="send", peer=1, at=0, until=50, seq=0, id=0, payload_bytes=100),
        call(rank=1, kind="recv", peer=0, at=30, until=60, seq=0, id=0, payload_bytes=100),
    ]
    table = bandwidth(run_of(calls)).set_index("kind")
    assert table["after_arrival_ns"].to_dict() == {"send": 20, "recv": 30}


def test_a_barrier_has_no_bandwidth() -> None:
    row = row_of(collective("barrier", [0, 10], [20, 20], payload_bytes=0))
    assert (row["num_calls"], row["num_timed"], row["time_ns"]) == (2, 0, -1)
    assert all(map(isnan, rates(row)))
    assert isnan(row["share_of_reference"])
    assert row["reference_is"] == ""


def test_a_call_without_a_known_end_counts_as_a_call_only() -> None:
    calls = collective("all_reduce", [0, 60_000], [100_000, 110_000])
    calls[0] = calls[0]._replace(complete_ns=-1)
    row = row_of(calls)
    assert (row["num_calls"], row["num_timed"], row["num_after_arrival"]) == (2, 1, 1)
    assert row["after_arrival_ns"] == 50_000


def test_a_collective_without_a_member_is_timed_but_has_no_last_arrival() -> None:
    row = row_of(collective("all_reduce", [0], [100_000]))
    assert (row["num_timed"], row["num_after_arrival"], row["after_arrival_ns"]) == (1, 0, -1)
    assert rates(row) == pytest.approx([SIZE / 100e-6, SIZE / 100e-6, nan, nan], nan_ok=True)
    assert isnan(row["best_busbw_bytes_per_s"])


def test_the_blocked_time_may_be_unknown() -> None:
    calls = [each._replace(blocked_ns=-1) for each in collective("all_reduce", [0, 60], [100, 110])]
    assert row_of(calls)["after_arrival_ns"] == 90


def test_an_end_before_the_last_arrival_is_a_clock_that_is_off() -> None:
    row = row_of(collective("all_reduce", [0, 60_000], [50_000, 110_000]))
    assert (row["num_timed"], row["num_after_arrival"], row["after_arrival_ns"]) == (2, 1, 50_000)


def test_calls_of_unknown_size_have_a_row_of_their_own() -> None:
    table = bandwidth(run_of(collective("all_reduce", [0, 6], [9, 9], payload_bytes=-1)))
    assert table["from_bytes"].tolist() == [-1]
    assert table["payload_bytes"].tolist() == [-1]
    assert table["num_timed"].tolist() == [0]


def test_a_group_of_one_moves_nothing() -> None:
    row = row_of(collective("all_reduce", [0], [9]), num_ranks=1)
    assert row["algbw_after_arrival_bytes_per_s"] == pytest.approx(SIZE / 9e-9)
    assert isnan(row["busbw_after_arrival_bytes_per_s"])


def test_algorithms_and_protocols_have_rows_of_their_own() -> None:
    calls = collective("all_reduce", [0, 0], [100, 100], algorithm="RING", protocol="LL")
    calls += collective("all_reduce", [200, 200], [250, 250], seq=1, id=1, algorithm="TREE")
    table = bandwidth(run_of(calls))
    assert table["algorithm"].tolist() == ["RING", "TREE"]
    assert table["protocol"].tolist() == ["LL", ""]
    assert table["after_arrival_ns"].tolist() == [200, 100]


def repeated(*lasts_ns: int) -> list[Any]:
    """Collectives of 1 MB at which all arrive at once, each of the given duration."""
    calls = []
    for seq, lasts in enumerate(lasts_ns):
        at = 1_000_000 * seq
        calls += collective("all_reduce", [at, at], [at + lasts] * 2, seq=seq, id=seq)
    return calls


def test_median_and_best_are_of_single_collectives() -> None:
    row = row_of(repeated(10_000, 20_000, 100_000))
    assert row["median_busbw_bytes_per_s"] == pytest.approx(SIZE / 20e-6)
    assert row["best_busbw_bytes_per_s"] == pytest.approx(SIZE / 10e-6)
    assert row["busbw_after_arrival_bytes_per_s"] == pytest.approx(6 * SIZE / 260e-6)
    assert (row["reference_is"], row["reference_bytes_per_s"]) == ("best", pytest.approx(1e11))
    assert row["share_of_reference"] == pytest.approx(6 / 260 * 10)


def test_the_best_of_a_kind_and_group_is_the_reference_of_all_its_sizes() -> None:
    calls = repeated(10_000)
    calls += collective("all_reduce", [10**6] * 2, [10**6 + 10] * 2, seq=1, id=1, payload_bytes=512)
    calls += collective("all_reduce", [0, 0], [50, 50], group="h", payload_bytes=500)
    table = bandwidth(run_of(calls, groups=[group("g"), group("h")]))
    assert table["reference_bytes_per_s"].tolist() == pytest.approx([1e11, 1e11, 1e10])
    assert table["share_of_reference"].tolist() == pytest.approx([0.512, 1, 1])


def with_link(frames: Frames, link: Any) -> Frames:
    return replace(frames, settings=Settings(link=speeds_of_links(link)))


def test_the_speed_of_a_link_is_the_reference_of_its_groups() -> None:
    calls = collective("all_reduce", [0, 0], [10_000] * 2)
    calls += collective("all_reduce", [0, 0], [10_000] * 2, group="h")
    calls += collective("all_reduce", [0, 0], [10_000] * 2, group="i")
    groups = [group("g", mesh_axis="tp"), group("h", mesh_axis="dp"), group("i", mesh_axis="dp")]
    frames = run_of(calls, groups=groups)
    table = bandwidth(with_link(frames, {"tp": "400 GB/s", "i": "1.6 Tbit/s"}))
    assert table["reference_is"].tolist() == ["link", "best", "link"]
    assert table["reference_bytes_per_s"].tolist() == pytest.approx([4e11, 1e11, 2e11])
    assert table["share_of_reference"].tolist() == pytest.approx([0.25, 1, 0.5])
    of_all = bandwidth(with_link(frames, {"*": "50 GB/s", "tp": "400 GB/s"}))
    assert of_all["reference_bytes_per_s"].tolist() == pytest.approx([4e11, 5e10, 5e10])


def test_a_run_with_a_straggler_reaches_its_link_after_arrival_only() -> None:
    """The made-up run moves data at a known speed, and a rank of it is late."""
    table = bandwidth(load(large_trace(PLAN)))
    tp = table[(table["kind"] == "all_reduce") & (table["mesh_axis"] == "tp")]
    assert (tp["busbw_bytes_per_s"] < tp["busbw_after_arrival_bytes_per_s"]).all()
    assert (tp["busbw_after_arrival_bytes_per_s"] < BYTES_PER_S).all()
    assert (tp["busbw_after_arrival_bytes_per_s"] > BYTES_PER_S / 3).all()  # it has a latency


def test_by_kind_has_the_busbw_after_arrival() -> None:
    calls = collective("all_reduce", [0, 60_000], [100_000, 110_000])
    calls += collective("barrier", [0, 10], [20, 20], seq=1, payload_bytes=0)
    table = (
        CATALOG["by_kind"]
        .function(run_of(calls))
        .set_index("kind")["busbw_after_arrival_bytes_per_s"]
    )
    assert table["all_reduce"] == pytest.approx(2 * SIZE / 90e-6)
    assert isnan(table["barrier"])


def test_a_run_without_calls_has_no_bandwidth() -> None:
    assert bandwidth(run_of()).empty
