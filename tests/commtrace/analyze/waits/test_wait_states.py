from __future__ import annotations

from collections import defaultdict

import pytest

from benchmarks.large_run import large_trace
from commtrace.analyze import load
from commtrace.analyze.waits.skew import skew
from commtrace.analyze.waits.wait_states import STATES, wait_states
from commtrace.tracefile import Trace
from tests.benchmarks.test_large_run import PLAN
from tests.commtrace.analyze.by_hand import last_calls_of, numbers_of, rows, waits_of
from tests.commtrace.analyze.measures.test_arrivals import collective, moved
from tests.commtrace.analyze.rows import call as call_row
from tests.commtrace.analyze.rows import random_trace, run_of
from tests.commtrace.analyze.training import training_trace

TRACES = [random_trace(seed) for seed in range(3)] + [training_trace()]


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("all_reduce", "Wait at N x N"),
        ("barrier", "Wait at Barrier"),
        ("broadcast", "Late Broadcast"),
        ("reduce", "Early Reduce"),
    ],
)
def test_a_wait_has_its_name_and_its_cause(kind: str, state: str) -> None:
    root = {"broadcast": 1, "reduce": 0}.get(kind, -1)
    row = wait_states(run_of(collective(kind, [10, 40], 100, root=root))).iloc[0]
    assert (row["state"], row["kind"], row["mesh_axis"]) == (state, kind, "tp")
    assert (row["num_calls"], row["num_waits"]) == (2, 1)
    assert (row["wait_ns"], row["transfer_ns"], row["max_wait_ns"]) == (30, 120, 30)
    assert (row["worst_rank"], row["worst_wait_ns"]) == (1, 30)
    assert row["share"] == 30 / 2_000_000


@pytest.mark.parametrize(("times_late", "worst"), [(3, -1), (4, 0)])
def test_no_rank_is_the_worst_below_1_5_times_its_even_share(times_late: int, worst: int) -> None:
    """Rank 0 is late to some of five all-reduces of two ranks, rank 1 to the others."""
    calls = [
        call_row(
            rank=rank, id=n, seq=n, at=100 * n + at, until=100 * n + 50, call_ns=50 - at,
            blocked_ns=50 - at,
        )
        for n in range(5)
        for rank in range(2)
        for at in [10 * (rank == (n >= times_late))]
    ]  # fmt: skip
    row = wait_states(run_of(calls)).iloc[0]
    assert (row["wait_ns"], row["worst_rank"]) == (50, worst)
    assert row["worst_wait_ns"] == (40 if worst == 0 else 0)


def test_transfers_wait_for_late_senders_and_receivers() -> None:
    table = wait_states(run_of(moved(send=(50, 60), recv=(10, 60))))
    assert table[["state", "wait_ns", "worst_rank"]].values.tolist() == [
        ["Late Sender", 40, 0],
        ["Late Receiver", 0, -1],
    ]


def test_the_skew_is_from_the_first_arrival_to_the_last_one() -> None:
    calls = collective("all_reduce", [10, 40], 100) + collective(
        "all_reduce", [220, 210], 300, seq=1
    )
    row = skew(run_of(calls)).iloc[0]
    assert (row["num_collectives"], row["mean_skew_ns"], row["max_skew_ns"]) == (2, 20, 30)
    assert (row["wait_ns"], row["last_rank"], row["last_share"]) == (40, 0, 0.5)


@pytest.mark.parametrize("trace", TRACES)
def test_wait_states_agree_with_loops(trace: Trace) -> None:
    comm, waits = rows(trace, "comm"), waits_of(trace)
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for call, wait in zip(comm, waits, strict=True):
        if wait is not None:
            sums = expected[call.kind]
            sums[0] += 1
            sums[1] += wait[0]
            sums[2] += call.blocked_ns - wait[0]
    found = wait_states(load(trace)).groupby("kind")[["num_calls", "wait_ns", "transfer_ns"]].sum()
    assert {kind: list(row) for kind, *row in found.itertuples()} == dict(expected)


@pytest.mark.parametrize("trace", TRACES)
def test_skews_agree_with_loops(trace: Trace) -> None:
    comm, lasts = rows(trace, "comm"), last_calls_of(trace)
    met_at: dict[tuple, list] = defaultdict(list)
    for call, number, last in zip(comm, numbers_of(comm), lasts, strict=True):
        if last is not None and call.kind not in ("send", "recv"):
            met_at[call.group, call.kind, number].append(call.issue_ns)
    expected: dict[tuple, list[int]] = defaultdict(list)
    for (group, kind, _), issued in met_at.items():
        expected[group, kind].append(max(issued) - min(issued))
    for row in skew(load(trace)).to_dict("records"):
        skews = expected.pop((row["group"], row["kind"]))
        assert row["num_collectives"] == len(skews)
        assert row["max_skew_ns"] == max(skews)
        assert row["mean_skew_ns"] == pytest.approx(sum(skews) / len(skews))
    assert not expected


def test_the_injected_straggler_causes_the_waits_of_its_row() -> None:
    frames = load(large_trace(PLAN))
    states = wait_states(frames).set_index(["kind", "mesh_axis"])
    assert states.loc[("all_reduce", "tp"), "worst_rank"] == PLAN.late_rank
    group = skew(frames).set_index(["group", "kind"]).loc[("tp0", "all_reduce")]
    assert group["last_rank"] == PLAN.late_rank
    assert group["last_share"] >= 2 / 3  # always in forward, by chance in backward


def test_every_kind_that_can_wait_has_a_state() -> None:
    from commtrace.collective_table import KINDS

    assert STATES.keys() == KINDS.keys()
