"""Each reason for a late arrival, injected alone, in runs of two and of eight ranks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from commtrace.analyze import Frames, load
from commtrace.analyze.excerpts.time_window import of_steps
from commtrace.analyze.findings import findings
from commtrace.analyze.waits.collectives import collectives
from commtrace.analyze.waits.lateness import REASONS, UNKNOWN, lateness, lateness_at
from commtrace.analyze.waits.start_skew import COLUMNS, MOST_COLLECTIVES, start_skew
from commtrace.analyze.waits.stragglers import stragglers
from commtrace.schema import MOST_INSTANT_NS
from tests.commtrace.analyze.device_rows import CALL_STREAM, kernel, numbered
from tests.commtrace.analyze.rows import START_NS, call, group, late_trace, rank_row, run_of, step

LATE = 1
Work = Callable[[int, int], list[Any]]
"""Kernels of a rank around its second collective, which begins at the given instant."""


def device_run(work: Work, num_ranks: int, late_ns: int = 3_000, **more: Any) -> Frames:
    """Two collectives; the straggler arrives `late_ns` later than the others at the second.

    The first ends at 1,000 ns; the others arrive at the second at 5,000 ns.
    """
    comm, kernels = [], []
    for rank in range(num_ranks):
        at = 5_000 + late_ns * (rank == LATE)
        for number, (begin, end) in enumerate(((900, 1_000), (at, 9_000))):
            comm.append(
                call(rank=rank, id=number, seq=number, at=begin, until=end,
                     call_ns=end - begin, blocked_ns=end - begin, device="cuda:0")
            )  # fmt: skip
        first = kernel("communication", at=900, until=1_000, launched=100, call_id=0)
        own = [each._replace(rank=rank) for each in (first, *work(rank, at))]
        kernels += [each if each.call_id >= 0 else each._replace(device="cuda:0") for each in own]
    return run_of(comm, num_ranks=num_ranks, kernels=numbered(kernels), **more)


def own_kernel(at: int, launched: int) -> Any:
    return kernel("communication", at=at, until=9_000, launched=launched, call_id=1)


def computes_longer(rank: int, at: int) -> list[Any]:
    return [kernel(at=1_100, until=at - 10, launched=200), own_kernel(at, 300)]


def copies_longer(rank: int, at: int) -> list[Any]:
    compute = kernel(at=1_100, until=4_000, launched=200)
    return [compute, kernel("memcpy", at=4_000, until=at - 10), own_kernel(at, 300)]


def is_launched_late(rank: int, at: int) -> list[Any]:
    return [kernel(at=1_100, until=4_000, launched=200), own_kernel(at, at - 20)]


def begins_late(rank: int, at: int) -> list[Any]:
    return [kernel(at=1_100, until=4_000, launched=200), own_kernel(at, 4_100)]


def has_its_stream_busy(rank: int, at: int) -> list[Any]:
    other = kernel(at=4_500, until=at - 10, launched=250, stream=CALL_STREAM)
    others = [other] if rank == LATE else []
    return [kernel(at=1_100, until=4_000, launched=200), *others, own_kernel(at, 300)]


def has_other_communication_in_its_stream(rank: int, at: int) -> list[Any]:
    other = kernel("communication", at=4_000, until=at - 10, launched=250)
    return [kernel(at=1_100, until=4_000, launched=200), other, own_kernel(at, 300)]


def communicates_elsewhere(rank: int, at: int) -> list[Any]:
    other = kernel("communication", at=4_000, until=at - 10, launched=250, stream=21)
    return [kernel(at=1_100, until=4_000, launched=200), other, own_kernel(at, 300)]


INJECTED: dict[str, tuple[Work, str, float, float]] = {
    "compute": (computes_longer, "longer compute", 3_000, 3_890),
    "copies": (copies_longer, "memory copies", 3_000, 990),
    "host": (is_launched_late, "host late", 3_000, 100 + 980),
    "launch": (begins_late, "launch delayed", 3_000, 900),
    "stream": (has_its_stream_busy, "behind another kernel", 3_490, 2_900),
    "communication": (has_other_communication_in_its_stream, "behind another kernel", 3_000, 990),
    "other group": (communicates_elsewhere, "blocked in another group", 3_000, 990),
}


@pytest.mark.parametrize("num_ranks", [2, 8])
@pytest.mark.parametrize("name", INJECTED)
def test_an_injected_reason_on_a_device_is_found(name: str, num_ranks: int) -> None:
    work, reason, excess, usual = INJECTED[name]
    (row,) = start_skew(device_run(work, num_ranks)).to_dict("records")
    assert (row["reason"], row["excess_ns"], row["usual_ns"]) == (reason, excess, usual)
    assert (row["straggler"], row["call"], row["unknown"]) == (LATE, f"{LATE}:1", "")
    assert (row["first_rank"], row["last_rank"], row["number"]) == (0, LATE, 1)
    assert (row["skew_ns"], row["wait_ns"]) == (3_000, 3_000 * (num_ranks - 1))


def test_computation_on_the_stream_of_the_calls_is_no_other_kernel_if_all_have_it() -> None:
    """Custom all-reduces run in the stream of the computation."""

    def work(rank: int, at: int) -> list[Any]:
        compute = kernel(at=1_100, until=at - 10, launched=200, stream=CALL_STREAM)
        return [compute, own_kernel(at, 300)]

    (row,) = start_skew(device_run(work, 8)).to_dict("records")
    assert (row["reason"], row["excess_ns"]) == ("longer compute", 3_000)


def host_run(num_ranks: int, *between: Any, late_ns: int = 3_000, **more: Any) -> Frames:
    """The same on the host, where the straggler has other calls in between."""
    comm = list(between)
    num_before = {LATE: sum(each.group == "g" for each in between)}
    for rank in range(num_ranks):
        at = 5_000 + late_ns * (rank == LATE)
        for number, (begin, end) in enumerate(((900, 1_000), (at, 9_000))):
            comm.append(
                call(rank=rank, id=10 * number, seq=number * (1 + num_before.get(rank, 0)),
                     at=begin, until=end, call_ns=end - begin, blocked_ns=end - begin)
            )  # fmt: skip
    groups = [group("g", range(num_ranks)), group("h", [LATE, num_ranks])]
    return run_of(comm, num_ranks=num_ranks + 1, groups=groups, **more)


def other_call(kind: str = "all_reduce", **columns: Any) -> Any:
    """A call of the straggler from 4,000 to 7,900 ns."""
    known = {"rank": LATE, "kind": kind, "id": 5, "seq": 0, "group": "h", "at": 4_000}
    times = {"until": 7_900, "call_ns": 3_900, "blocked_ns": 3_900}
    return call(**(known | times | columns))


@pytest.mark.parametrize("num_ranks", [2, 8])
@pytest.mark.parametrize(
    ("between", "reason", "excess", "usual"),
    [
        ([], "longer work", 3_000, 4_000),
        ([other_call()], "blocked in another group", 3_900, 0),
        ([other_call("send", group="g", peer=0, seq=1)], "blocked in an earlier call", 3_900, 0),
    ],
    ids=["work", "other group", "same group"],
)
def test_an_injected_reason_on_the_host_is_found(
    between: list[Any], reason: str, excess: float, usual: float, num_ranks: int
) -> None:
    frames = host_run(num_ranks, *between)
    row = start_skew(frames).to_dict("records")[0]
    assert (row["reason"], row["excess_ns"], row["usual_ns"]) == (reason, excess, usual)
    assert (row["straggler"], row["unknown"]) == (LATE, "")


@pytest.mark.parametrize("num_ranks", [2, 8])
def test_a_rank_that_had_no_core_did_not_work_longer(num_ranks: int) -> None:
    frames = host_run(num_ranks)
    second = (frames.comm["rank"] == LATE) & (frames.comm["seq"] == 1)
    comm = frames.comm.assign(run_delay_ns=np.where(second, 2_900, 0))
    row = start_skew(replace(frames, comm=comm)).to_dict("records")[0]
    assert (row["reason"], row["excess_ns"], row["usual_ns"]) == ("no free core", 2_900, 0)


@pytest.mark.parametrize("num_ranks", [2, 8])
@pytest.mark.parametrize(
    ("delay", "reason", "excess"),
    [(3_500, "longer work", 3_000), (4_900, "no free core", 2_800)],
    ids=["at the others' rate", "beyond it"],
)
def test_who_works_longer_on_shared_cores_waits_longer_for_them(
    delay: int, reason: str, excess: float, num_ranks: int
) -> None:
    """The others lack a core for as long as they work."""
    frames = host_run(num_ranks)
    is_second = frames.comm["seq"] == 1
    delays = np.where(frames.comm["rank"] == LATE, delay, 2_000)
    comm = frames.comm.assign(run_delay_ns=np.where(is_second, delays, 0))
    row = start_skew(replace(frames, comm=comm)).to_dict("records")[0]
    assert (row["reason"], row["excess_ns"]) == (reason, excess)


def test_calls_in_flight_together_are_compared_since_the_last_one_that_all_completed() -> None:
    """Gradients are reduced asynchronously; the straggler is late before the first of them."""
    comm = []
    for rank in range(2):
        late = 500 * (rank == LATE)
        times = [(0, 100), (1_000 + late, 5_000), (1_200 + late, 5_100)]
        comm += [
            call(rank=rank, id=number, seq=number, at=at, until=until, call_ns=10,
                 blocked_ns=until - at if number == 0 else 10)
            for number, (at, until) in enumerate(times)
        ]  # fmt: skip
    table = start_skew(run_of(comm))
    assert table["number"].tolist() == [1, 2]
    assert table["reason"].tolist() == ["longer work"] * 2
    assert table["usual_ns"].tolist() == [900, 1_100 - 10]
    assert table["excess_ns"].tolist() == [500, 500]


def test_the_first_collective_of_a_group_is_compared_since_the_ranks_previous_calls() -> None:
    comm = [
        call(rank=rank, id=number, group=name, seq=0, at=at, until=end, call_ns=9, blocked_ns=9)
        for rank in range(2)
        for number, (name, at, end) in enumerate(
            [(f"alone{rank}", 0, 50 + rank), ("g", 100 + 70 * rank, 200)]
        )
    ]
    groups = [group("g"), group("alone0", [0]), group("alone1", [1])]
    (row,) = start_skew(run_of(comm, groups=groups)).to_dict("records")
    assert (row["reason"], row["excess_ns"], row["usual_ns"]) == ("longer work", 69, 50)


def without_launch(rank: int, at: int) -> list[Any]:
    return [each._replace(launch_ns=-1) for each in is_launched_late(rank, at)]


def alone(rank: int, at: int) -> list[Any]:
    return [own_kernel(at, at - 20)]


def on_the_host_too(rank: int, at: int) -> list[Any]:
    kernels = computes_longer(rank, at)
    return kernels if rank else kernels[:-1]


@pytest.mark.parametrize(
    ("work", "unknown"),
    [
        (without_launch, "the launch of its kernel is not in the trace"),
        (alone, "the trace has no other kernels of the device"),
        (on_the_host_too, "its members ran on devices and on hosts"),
    ],
)
def test_a_trace_that_does_not_show_the_reason_says_so(work: Work, unknown: str) -> None:
    (row,) = start_skew(device_run(work, 2)).to_dict("records")
    assert (row["reason"], row["unknown"]) == ("", unknown)
    assert row["excess_ns"] != row["excess_ns"]
    assert row["straggler"] == LATE


FIRST = [
    call(rank=rank, id=1, seq=0, at=50 + 90 * rank, until=199, blocked_ns=9) for rank in (0, 1)
]


def test_the_first_call_of_a_run_is_compared_since_the_recording_began() -> None:
    (row,) = start_skew(run_of(FIRST)).to_dict("records")
    assert (row["reason"], row["excess_ns"], row["usual_ns"]) == ("longer work", 90, 50)
    times = {"at": 60, "until": 130, "call_ns": 70, "blocked_ns": 70}
    one_has_another = [call(rank=1, id=0, group="alone", seq=0, **times)]
    groups = [group("g"), group("alone", [1])]
    (row,) = start_skew(run_of([*FIRST, *one_has_another], groups=groups)).to_dict("records")
    assert (row["reason"], row["excess_ns"], row["usual_ns"]) == ("blocked in another group", 70, 0)


def test_a_rank_whose_recording_began_later_was_late_already() -> None:
    ranks = [rank_row(0), rank_row(1, start_ns=START_NS + 80)]
    (row,) = start_skew(run_of(FIRST, ranks=ranks)).to_dict("records")
    assert (row["reason"], row["unknown"]) == (
        "", "it was late already where the comparison begins",
    )  # fmt: skip


def test_the_first_call_has_no_reason_if_the_begin_of_a_recording_is_unknown() -> None:
    ranks = [rank_row(0), rank_row(1, start_ns=-1)]
    (row,) = start_skew(run_of(FIRST, ranks=ranks)).to_dict("records")
    assert (row["reason"], row["unknown"]) == (
        "", "the begin of a member's recording is unknown",
    )  # fmt: skip


def test_a_call_in_flight_of_unknown_blocked_time_may_be_the_reason() -> None:
    frames = host_run(2, other_call(blocked_ns=-1))
    row = start_skew(frames).to_dict("records")[0]
    assert (row["reason"], row["unknown"]) == (
        "", "the blocked time of earlier calls is unknown",
    )  # fmt: skip


def test_a_clock_that_is_off_is_no_reason() -> None:
    """A rank's clock is ahead, so its calls seem late without any use of time."""
    comm = [
        call(rank=rank, id=n, seq=n, at=1_000 * n + 400 * rank, until=1_000 * n + 500 + 400 * rank,
             call_ns=500, blocked_ns=500)
        for rank in range(2) for n in range(2)
    ]  # fmt: skip
    table = start_skew(run_of(comm)).set_index("number")
    assert table.loc[1, "unknown"] == "it was late already where the comparison begins"


def test_two_small_reasons_are_none() -> None:
    """Computing and copying take 40% of the delay each."""

    def work(rank: int, at: int) -> list[Any]:
        more = 1_200 * (rank == LATE)
        compute = kernel(at=1_100, until=2_000 + more, launched=200)
        return [compute, kernel("memcpy", at=3_300, until=3_400 + more), own_kernel(at, 300)]

    (row,) = start_skew(device_run(work, 2)).to_dict("records")
    assert (row["reason"], row["unknown"]) == ("", "no use of time explains half of the delay")


def test_the_others_of_a_broadcast_wait_for_the_root_and_for_nobody_else() -> None:
    def broadcast(late: int) -> Frames:
        comm = []
        for rank in range(3):
            times = {"call_ns": 9, "blocked_ns": 9}
            at = 1_000 + 300 * (rank == late)
            comm.append(call(rank=rank, id=0, seq=0, kind="barrier", at=0, until=600, **times))
            comm.append(
                call(rank=rank, id=1, seq=1, kind="broadcast", root=0, at=at, until=1_600, **times)
            )
        return run_of(comm, num_ranks=3)

    (row,) = start_skew(broadcast(late=0)).to_dict("records")
    assert (row["straggler"], row["last_rank"], row["reason"]) == (0, 0, "longer work")
    (row,) = start_skew(broadcast(late=2)).to_dict("records")
    assert (row["straggler"], row["last_rank"], row["call"]) == (-1, 2, "")
    assert (row["reason"], row["unknown"], row["skew_ns"]) == ("", "nobody waited", 300)


def test_waits_that_are_unknown_leave_the_skew_known() -> None:
    comm = [
        call(rank=rank, id=n, seq=n, at=1_000 * n + 50 * rank * n, until=1_000 * n + 99)
        for rank in range(2)
        for n in range(2)
    ]
    (row,) = start_skew(run_of(comm)).to_dict("records")
    assert (row["skew_ns"], row["wait_ns"], row["reason"]) == (50, -1, "longer work")


def test_only_the_largest_skews_are_listed_in_order() -> None:
    frames = load(late_trace(lambda n, rank: n * (rank == 1), num=MOST_COLLECTIVES + 50))
    table = start_skew(frames)
    assert table["skew_ns"].tolist() == list(range(MOST_COLLECTIVES + 49, 49, -1))
    assert len(collectives(frames)) == MOST_COLLECTIVES + 50


@pytest.mark.parametrize("frames", [run_of(), run_of([call(at=5)], num_ranks=1)])
def test_a_run_without_peers_has_no_skew(frames: Frames) -> None:
    table = start_skew(frames)
    assert table.empty
    assert [*table] == [column.name for column in COLUMNS]
    assert lateness(frames).empty


def test_a_part_of_a_run_has_the_reasons_that_it_shows() -> None:
    frames = device_run(computes_longer, 2)
    assert lateness_at(frames, 0) is None  # all arrive at once
    late = lateness_at(frames, int(frames.comm.index[-1]))
    assert late is not None
    assert (late.rank, late.id, late.reason) == (LATE, 1, "longer compute")
    assert late.sentence() == (
        "rank 1 was late: longer compute, 3 µs beyond the others' median of 3.89 µs"
    )
    ranks = [rank_row(0), rank_row(1, start_ns=-1)]
    unknown = lateness_at(run_of(FIRST, ranks=ranks), 0)
    assert unknown is not None
    assert unknown.sentence() == (
        "rank 1 was late; reason unknown: the begin of a member's recording is unknown"
    )


def test_stragglers_name_the_reason_of_most_of_their_delay() -> None:
    (row,) = stragglers(device_run(copies_longer, 8)).to_dict("records")
    assert (row["rank"], row["delay_ns"], row["reason"]) == (LATE, 3_000, "memory copies")
    assert row["excess_ns"] == 3_000


def test_the_finding_names_the_reason() -> None:
    comm, kernels = [], []
    for rank in range(2):
        for n in range(12):
            late = 3_000 * (rank == LATE)
            at, end = 10_000 * n + 1_000 + late, 10_000 * n + 9_000
            comm.append(
                call(rank=rank, id=n, seq=n, at=at, until=end, call_ns=end - at,
                     blocked_ns=end - at, step=n)
            )  # fmt: skip
            work = [
                kernel(at=10_000 * n, until=10_000 * n + 900, launched=10_000 * n),
                kernel("communication", at=at, until=end, launched=at - 5, call_id=n),
            ]
            kernels += [each._replace(rank=rank) for each in work]
    steps = [step(rank, n, 10_000 * n, 10_000 * (n + 1)) for rank in range(2) for n in range(12)]
    ranks = [rank_row(rank, end_ns=START_NS + 120_000) for rank in range(2)]
    table = findings(run_of(comm, kernels=numbered(kernels), steps=steps, ranks=ranks))
    (title,) = table.loc[table["rule"] == "straggler", "title"]
    assert title.endswith("; reason: host late, 3 µs longer than the others.")


def test_reasons_and_causes_are_distinct() -> None:
    assert len({*REASONS, *UNKNOWN}) == len(REASONS) + len(UNKNOWN)


def test_a_part_of_a_run_has_the_reasons_of_the_whole() -> None:
    """All but the first collective of the part have the same calls before them."""
    frames = load(late_trace(lambda n, rank: 100 * n * (rank == n % 3)))
    names = ["number", "call", "reason", "excess_ns"]
    whole = start_skew(frames).set_index("number")
    part = start_skew(of_steps(frames, 1, 1))
    assert len(part) == 10
    for row in part[part["number"] > 10][names].to_dict("records"):
        number = row.pop("number")
        assert whole.loc[number, names[1:]].to_dict() == row


EDGES = (-1, 0, 1, START_NS, START_NS + 5, MOST_INSTANT_NS - 1, MOST_INSTANT_NS)
LENGTHS = (-1, 0, 1, 1 << 57, 1 << 58)
"""Points in time and durations at the ends of what a file may hold."""


@pytest.mark.parametrize("seed", range(10))
def test_times_at_the_ends_of_their_range_overflow_nothing(seed: int) -> None:
    chance = random.Random(seed)
    comm, kernels = [], []
    for rank in range(3):
        for number in range(4):
            issue = chance.choice(EDGES)
            end = chance.choice([edge for edge in EDGES if edge == -1 or edge >= issue])
            kind = chance.choice(("all_reduce", "broadcast", "send"))
            comm.append(
                call(rank=rank, id=number, seq=number, kind=kind, root=0, issue_ns=issue,
                     complete_ns=end, call_ns=chance.choice(LENGTHS),
                     blocked_ns=chance.choice(LENGTHS))
            )  # fmt: skip
            for category in ("compute", "communication", "memcpy"):
                known = {"rank": rank, "start_ns": chance.choice(EDGES), "call_id": number}
                known |= {"launch_ns": chance.choice(EDGES), "duration_ns": chance.choice(LENGTHS)}
                kernels.append(kernel(category, at=0, until=0)._replace(**known))
    frames = run_of(comm, num_ranks=3, kernels=numbered(kernels))
    with np.errstate(all="raise"):
        table = start_skew(frames)
    assert (table["skew_ns"] > 0).all()
    assert not (table[["excess_ns", "usual_ns"]] < 0).any(axis=None)
