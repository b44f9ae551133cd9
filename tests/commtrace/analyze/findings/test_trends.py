"""Steps that grow, and groups whose transfers are slow; what resembles them is no finding."""

from __future__ import annotations

import random
from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.analyze.findings import findings
from commtrace.tracefile import Trace
from tests.commtrace.analyze.trend_rows import MS, growing, in_groups


def found(trace: Trace, rule: str, link: str | None = None) -> list[dict[str, Any]]:
    table = findings(load(trace).with_link(link))
    return table[table["rule"] == rule].to_dict("records")


def noisy(lengths: list[float], part: float = 0.05) -> list[float]:
    chance = random.Random(0)
    return [length * chance.uniform(1 - part, 1 + part) for length in lengths]


def test_steps_that_take_longer_and_longer_are_found() -> None:
    lengths = [10 + 0.25 * number for number in range(40)]
    (one,) = found(growing(noisy(lengths)), "growing_steps")
    assert one["title"] == (
        "Steps take longer and longer: 11.1 ms in the first quarter of 40 steady steps, 18.7 ms "
        "in the last; 0% of the growth is time blocked by communication. At the pace of the first "
        "quarter all would have taken 158 ms less (26%)."
    )
    assert one["num_calls"] == 10


def test_growth_of_communication_is_told_from_that_of_work() -> None:
    blocked = [1 + 0.2 * number for number in range(40)]
    (one,) = found(growing([9 + each for each in blocked], blocked_ms=blocked), "growing_steps")
    assert "100% of the growth is time blocked by communication" in one["title"]


@pytest.mark.parametrize(
    "lengths",
    [
        noisy([10.0] * 60, 0.3),  # noise
        [10.0] * 20 + [15.0] * 20,  # another job began
        noisy([10.0] * 20 + [15.0] * 20, 0.2),
        [20 - 0.25 * number for number in range(40)],  # shorter and shorter
        [10 + 0.05 * number for number in range(40)],  # by less than a quarter
        [10 + 0.5 * number for number in range(19)],  # few steps
        [10.0, 19.0, 10.5] * 14,  # of several sorts
    ],
)
def test_other_steps_do_not_grow(lengths: list[float]) -> None:
    assert found(growing(lengths), "growing_steps") == []


def test_a_group_that_is_slower_than_equal_groups_is_found() -> None:
    (one,) = found(in_groups([2, 2.2, 1.9, 8]), "slow_link")
    assert one["title"] == (
        "all_reduce of group dp3 of axis dp (ranks 6,7) reaches 131 MB/s, 25% of the median of "
        "equal groups (524 MB/s), with messages of 1.05 MB and more."
    )
    assert (one["concerns"], one["change"]) == ("machine", "bandwidth *4 where finding=1")
    assert one["evidence"].startswith("6:0,7:0")


@pytest.mark.parametrize(
    "trace",
    [
        in_groups([2, 2.2, 1.9, 3]),  # hardly slower
        in_groups([2, 8]),  # of two, either may be unusual
        in_groups([2, 2, 2, 8], num_bytes=512),  # latency
        in_groups([2, 2, 2, 8], once_ms=1.5),  # it can be as fast
        in_groups([0.2, 0.2, 0.2, 0.8]),  # too short to matter
        in_groups([2, 2, 2, 8], hosts=[*"aaaaaa", "a", "b"]),  # across hosts, by design
    ],
)
def test_groups_that_may_differ_are_not_slow(trace: Trace) -> None:
    assert found(trace, "slow_link") == []


def test_large_messages_are_compared_with_the_link() -> None:
    (one,) = found(in_groups([8], num_bytes=1 << 25), "slow_link", "100 Gbit/s")
    assert "reaches 4.19 GB/s, 34% of its link's speed (12.5 GB/s)" in one["title"]
    assert found(in_groups([8], num_bytes=1 << 25), "slow_link", "50 Gbit/s") == []
    assert found(in_groups([8], num_bytes=1 << 25), "slow_link") == []
    assert found(in_groups([8]), "slow_link", "100 Gbit/s") == []  # too small for its speed
    assert one["cost_ns"] <= one["most_ns"] == pytest.approx(6 * 8 * MS * (1 - 0.3355), rel=0.01)
