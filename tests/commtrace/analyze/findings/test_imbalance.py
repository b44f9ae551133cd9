"""Kinds of imbalance on four ranks, each found under its name, and none in healthy programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from commtrace.analyze import Frames
from commtrace.analyze.findings import findings, unanswered
from tests.commtrace.analyze.findings.mixtures import NUM_STEPS, RANKS, drawn, recorded, seed_of

EVEN = np.ones(RANKS)
TWO_EACH = np.ones(2 * RANKS)


def weighted(values: dict[int, float], num: int = RANKS) -> np.ndarray:
    """Weights of experts, 1 except for those given."""
    weights = np.ones(num)
    for expert, weight in values.items():
        weights[expert] = weight
    return weights


def found(frames: Frames) -> list[dict[str, Any]]:
    assert "imbalance" not in unanswered(frames)
    table = findings(frames)
    return table[table["rule"] == "imbalance"].sort_values("title").to_dict("records")


def titles(frames: Frames) -> list[str]:
    return [row["title"] for row in found(frames)]


def everywhere(
    weights: np.ndarray, rows: Sequence[int] | None = None
) -> Callable[[int, int, str], np.ndarray]:
    return lambda layer, step, phase: drawn(seed_of(layer, step), weights, rows)


LAYERS = ["layers.0", "layers.1"]
BOTH = "in forward and backward; stable over the steps."


def check(frames: Frames, start: str, end: str = BOTH, layers: Sequence[str] = LAYERS) -> None:
    """Assert that each of the layers has one finding, with this title, and no other layer any."""
    rows = found(frames)
    assert [row["module"] for row in rows] == list(layers)
    for row in rows:
        assert row["title"].startswith(start)
        assert row["title"].endswith(f" in {row['module']}, {end}")


def test_a_hot_rank_gets_more_rows_from_all_ranks() -> None:
    frames = recorded(everywhere(weighted({2: 4})))
    check(frames, "Hot rank 2: it receives 2.3 times the mean of the ranks")
    for row in found(frames):
        # Dispatch and combine of each rank, forward and backward.
        assert row["num_calls"] * frames.num_ranks == 4 * RANKS * NUM_STEPS
        assert (row["kind"], row["cost_bytes"]) == ("all_to_all", 0)
        shrinks, evens = row["change"].split("; ")
        # Of 2.3 times the mean, the mean is left.
        factor = float(shrinks.partition("*")[2].partition(" ")[0])
        assert factor == pytest.approx(1 / 2.3, rel=0.1)
        assert evens.startswith("even where finding=")


@pytest.mark.parametrize("is_stated", [True, False])
def test_a_rank_all_of_whose_experts_are_hot_is_a_hot_rank(is_stated: bool) -> None:
    frames = recorded(everywhere(weighted({4: 4, 5: 4}, 8)), is_stated=is_stated)
    check(frames, "Hot rank 2: it receives 2.3 times the mean of the ranks")


def test_one_hot_expert_of_a_rank_with_two_is_a_hot_expert() -> None:
    frames = recorded(everywhere(weighted({5: 6}, 8)), is_stated=True)
    check(frames, "Hot expert 5 on rank 2: it receives 3.")


def test_two_hot_experts_on_different_ranks_are_two_findings_for_each_layer() -> None:
    frames = recorded(everywhere(weighted({1: 5, 6: 5}, 8)), is_stated=True)
    starts = [title[:24] for title in titles(frames)]
    assert starts == ["Hot expert 1 on rank 0: "] * 2 + ["Hot expert 6 on rank 3: "] * 2


def test_a_source_with_more_rows_is_a_skewed_source() -> None:
    frames = recorded(everywhere(EVEN, [120, 400, 120, 120]))
    check(frames, "Skewed source rank 1: it sends 2.1 times the mean of the ranks")


def test_a_rank_that_one_source_alone_sends_more_is_the_skew_of_the_source() -> None:
    weights = np.stack([EVEN, EVEN, EVEN, weighted({1: 20})])
    check(
        recorded(everywhere(weights)), "Skewed source rank 3: it sends mostly to rank 1, up to 1.6"
    )


def test_a_hot_rank_of_one_layer_is_found_in_that_layer() -> None:
    def route(layer: int, step: int, passed: str) -> np.ndarray:
        return drawn(seed_of(layer, step), weighted({3: 4}) if layer else EVEN)

    check(recorded(route), "Hot rank 3: it receives 2.3", layers=["layers.1"])


@pytest.mark.parametrize(
    ("weight", "drift"),
    [
        (lambda step: 1 + step / 3, "growing from 1."),
        (lambda step: 5 - step / 3, "shrinking from 2."),
    ],
)
def test_a_load_that_changes_over_the_steps_drifts(
    weight: Callable[[int], float], drift: str
) -> None:
    def route(layer: int, step: int, passed: str) -> np.ndarray:
        return drawn(seed_of(layer, step), weighted({0: weight(step)}))

    rows = titles(recorded(route))
    assert len(rows) == len(LAYERS)
    for title in rows:
        assert title.startswith("Hot rank 0: it receives ")
        assert f", in forward and backward; {drift}" in title


def test_a_load_that_is_high_at_the_end_only_is_found() -> None:
    def route(layer: int, step: int, passed: str) -> np.ndarray:
        return drawn(seed_of(layer, step), weighted({0: 3 if step >= NUM_STEPS * 2 // 3 else 1}))

    for title in titles(recorded(route)):
        assert title.startswith("Hot rank 0: ")
        assert "; growing from " in title


def test_ranks_that_are_hot_in_turn_are_changing_hot_ranks() -> None:
    def route(layer: int, step: int, passed: str) -> np.ndarray:
        return drawn(seed_of(layer, step), weighted({0 if step % 2 else 3: 8}))

    end = "in forward and backward."
    check(recorded(route), "Changing hot ranks: in most calls, one of ranks 0, 3 receives", end)


def test_a_hot_rank_of_the_backward_pass_is_found_there() -> None:
    def route(layer: int, step: int, passed: str) -> np.ndarray:
        return drawn(seed_of(layer, step), weighted({1: 4}) if passed == "backward" else EVEN)

    check(recorded(route), "Hot rank 1: it receives 2.3", "in backward; stable over the steps.")


def test_a_combine_that_does_not_return_what_was_dispatched_is_found_by_itself() -> None:
    def route(layer: int, step: int, passed: str) -> np.ndarray:
        lengths = [120, 400, 120, 120] if passed == "combine" else None
        return drawn(seed_of(layer, step), EVEN, lengths)

    frames = recorded(route)
    # Without directions, this is the mean of dispatch and combine, which are called at one line.
    check(frames, "Hot rank 1: it receives 1.7", "in forward; stable over the steps.")
    for row in found(frames):
        assert row["num_calls"] * frames.num_ranks == 2 * RANKS * NUM_STEPS


def test_an_expert_without_rows_is_starved() -> None:
    frames = recorded(everywhere(weighted({6: 0}, 8)), is_stated=True)
    check(frames, "Starved expert 6 on rank 3: 0.0% of", "in forward; stable over the steps.")


def with_capacity(layer: int, step: int, passed: str) -> np.ndarray:
    """Rows above the capacity are dropped."""
    return np.minimum(drawn(seed_of(layer, step), weighted({2: 2})), 36)


def of_any_length(layer: int, step: int, passed: str) -> np.ndarray:
    """Each rank has another number of rows in each step."""
    lengths = np.random.default_rng(seed_of(layer, step)).integers(40, 240, RANKS)
    return drawn(seed_of(layer, step), EVEN, lengths.tolist())


@pytest.mark.parametrize("num_steps", [1, NUM_STEPS])
@pytest.mark.parametrize(
    "route",
    [
        everywhere(EVEN),
        everywhere(TWO_EACH),
        everywhere(TWO_EACH, [3, 2, 4, 3]),  # a few rows
        everywhere(EVEN, [0, 0, 0, 0]),
        with_capacity,
        of_any_length,
    ],
    ids=["even", "two each", "few", "none", "capacity", "lengths"],
)
def test_a_healthy_program_has_no_finding(route: Any, num_steps: int) -> None:
    assert titles(recorded(route, is_stated=True, num_steps=num_steps)) == []


def test_what_a_capacity_drops_is_found_without_it() -> None:
    check(recorded(everywhere(weighted({2: 2}))), "Hot rank 2: it receives 1.6")
