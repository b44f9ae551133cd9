"""Waits, transfer and overlap of calls on devices, beside computation at any place of the call.

The expected values come from a walk over every tick of the profiles that are imported.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.analyze.excerpts.time_window import of_steps, within
from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.waits.activity import activity
from commtrace.importers import import_trace
from tests.commtrace.importers.kineto.profiles import Profile, write_profiles

TICK_NS = 1000
Ticks = tuple[int, int]


@dataclass
class Rank:
    """Kernels of a rank in ticks: a communication kernel for each collective, and computation."""

    calls: list[Ticks]
    computes: list[Ticks] = field(default_factory=list)
    steps: dict[int, Ticks] = field(default_factory=dict)
    launches: list[int] = field(default_factory=list)

    def flying(self) -> set[int]:
        return {tick for call in self.calls for tick in range(*call)}

    def computing(self) -> set[int]:
        return {tick for kernel in self.computes for tick in range(*kernel)}

    def exposed(self) -> set[int]:
        return self.flying() - self.computing()


def imported(folder: Path, *ranks: Rank) -> Frames:
    profiles = []
    for number, rank in enumerate(ranks):
        profile = Profile(number, groups={"0": list(range(len(ranks)))})
        profile.span("aten::first", "cpu_op", 0, 1)
        for step, (start, end) in rank.steps.items():
            profile.span(f"ProfilerStep#{step}", "user_annotation", start, end - start)
        for seq, (start, end) in enumerate(rank.calls):
            at = rank.launches[seq] if rank.launches else 2 + 30 * seq
            profile.call(
                "allreduce", "c10d::allreduce_", at, seq=1 + seq, kernel=(start, end - start)
            )
        for start, end in rank.computes:
            profile.span("ampere_gemm", "kernel", start, end - start, tid=7, stream=7)
        profiles.append(profile)
    return load(import_trace([write_profiles(folder, profiles)]))


def expected_waits(ranks: list[Rank]) -> list[tuple[int, int]]:
    """Wait and transfer of each call, in ticks, by rank."""
    arrived = [
        max(call[0] for call in calls) for calls in zip(*(r.calls for r in ranks), strict=True)
    ]
    return [
        (
            len({t for t in range(*call) if t not in rank.computing() and t < last}),
            len({t for t in range(*call) if t not in rank.computing() and t >= last}),
        )
        for rank in ranks
        for call, last in zip(rank.calls, arrived, strict=True)
    ]


def found_waits(frames: Frames) -> list[tuple[int, int]]:
    table = arrivals(frames).sort_values(["rank", "id"])
    pairs = table[["wait_ns", "transfer_ns"]].to_numpy() / TICK_NS
    return [(int(wait), int(transfer)) for wait, transfer in pairs.tolist()]


INJECTED = {
    "at the beginning": [(90, 160)],
    "in the middle": [(140, 190)],
    "at the end": [(230, 290)],
    "at both ends": [(90, 160), (230, 290)],
    "across the arrival": [(170, 220)],
    "several, overlapping": [(110, 130), (120, 150), (205, 210), (240, 250)],
    "over all of it": [(50, 400)],
    "beside it": [(10, 100), (300, 350)],
    "nowhere": [],
}


@pytest.mark.parametrize("place", INJECTED)
def test_the_wait_is_the_exposed_time_before_the_last_rank_arrives(
    tmp_path: Path, place: str
) -> None:
    # Rank 1 begins 100 ticks after rank 0, behind another kernel.
    early = Rank([(100, 300)], INJECTED[place])
    late = Rank([(200, 300)], [(60, 200)])
    frames = imported(tmp_path, early, late)
    assert found_waits(frames) == expected_waits([early, late])
    states = CATALOG["wait_states"].function(frames)
    waits = [wait for wait, _ in expected_waits([early, late])]
    assert states["wait_ns"].sum() == TICK_NS * sum(waits)
    for rank, each in enumerate((early, late)):
        doing = activity(frames)
        blocked = doing[(doing["rank"] == rank) & doing["kind"].ne("")]
        assert blocked["duration_ns"].sum() == TICK_NS * len(each.exposed())


@pytest.mark.parametrize("seed", range(12))
def test_random_kernels_agree_with_a_walk_over_time(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    ranks = []
    for _ in range(chance.choice((2, 3))):
        calls, at = [], 50
        for _ in range(6):
            at += chance.randrange(60)
            calls.append((at, at + chance.randrange(40, 120)))
            at = calls[-1][1] if chance.random() < 0.7 else at + 20  # concurrent with the next
        computes = [(s, s + chance.randrange(1, 50)) for s in chance.choices(range(900), k=20)]
        steps = {3: (0, 260), 4: (260, 470), 5: (500, 800)}
        ranks.append(Rank(calls, computes, steps, [2 + 45 * n for n in range(6)]))
    ends = [max(call[1] for call in calls) for calls in zip(*(r.calls for r in ranks), strict=True)]
    for rank in ranks:  # a collective ends at once
        rank.calls = [(start, end) for (start, _), end in zip(rank.calls, ends, strict=True)]
    frames = imported(tmp_path, *ranks)
    assert found_waits(frames) == expected_waits(ranks)
    table = CATALOG["overlap"].function(frames)
    found = {
        (row.step, row.rank): (row.communication_ns, row.exposed_ns, row.overlapped_ns)
        for row in table.itertuples()
    }
    for number, rank in enumerate(ranks):
        inside = {t: step for step, window in rank.steps.items() for t in range(*window)}
        for step in (3, 4, 5, -1):
            ticks = {t for t in rank.flying() if inside.get(t, -1) == step}
            exposed = len(ticks & rank.exposed())
            expected = tuple(TICK_NS * n for n in (len(ticks), exposed, len(ticks) - exposed))
            assert found.get((step, number), (0, 0, 0)) == expected


def running_ahead() -> list[Rank]:
    """The host issues a call in each step; the device runs each of them one step later."""
    steps = {7: (0, 100), 8: (100, 200), 9: (200, 300)}
    launches = [20, 120, 220]
    first = Rank([(120, 160), (195, 230), (310, 350)], [(130, 140), (215, 280)], steps, launches)
    second = Rank([(125, 160), (205, 230), (310, 350)], [(130, 140)], steps, launches)
    return [first, second]


def test_a_step_has_the_calls_that_run_in_it(tmp_path: Path) -> None:
    frames = imported(tmp_path, *running_ahead())
    assert frames.comm["step"].tolist() == [7, 8, 9] * 2  # the steps that issued them
    for step, ids in ((8, [0, 1]), (9, [1])):
        part = of_steps(frames, step, step)
        assert part.comm.groupby("rank")["id"].agg(list).tolist() == [ids, ids]
        columns = ["rank", "duration_ns", "communication_ns", "exposed_ns", "overlapped_ns"]
        of_part, of_run = (
            table[table["step"] == step][columns].values.tolist()
            for table in map(CATALOG["overlap"].function, (part, frames))
        )
        assert of_part == of_run
        waits = arrivals(frames).loc[frames.comm["id"].isin(ids)]
        assert arrivals(part).values.tolist() == waits.values.tolist()
    assert of_steps(frames, 7, 7).comm.empty


def test_time_windows_and_steps_agree(tmp_path: Path) -> None:
    frames = imported(tmp_path, *running_ahead())
    part = within(frames, (200 * TICK_NS, 300 * TICK_NS))
    assert part.comm["id"].tolist() == [1, 1]
    table = CATALOG["overlap"].function(part).set_index(["step", "rank"])
    whole = CATALOG["overlap"].function(frames).set_index(["step", "rank"])
    for rank in range(2):
        assert table.loc[(9, rank), "exposed_ns"] == whole.loc[(9, rank), "exposed_ns"]
    assert whole.loc[(9, 0), "exposed_ns"] == 15 * TICK_NS  # 200 to 215
    assert whole.loc[(9, 1), "exposed_ns"] == 25 * TICK_NS  # 205 to 230
    assert whole.loc[(-1, 0), "exposed_ns"] == 40 * TICK_NS  # after the last step
    assert whole.loc[(7, 0), "communication_ns"] == 0
