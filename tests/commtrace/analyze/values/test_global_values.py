"""Fingerprints of global tensors are the same in every layout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import pytest
import torch

from commtrace.analyze.values import replicas, tensors
from commtrace.analyze.values.global_values import FACTS
from commtrace.schema import NUM_SKETCHES
from dtensor_core import Replicate, Shard
from dtensor_core.placement import Placement
from tests.commtrace.analyze.rows import run_of
from tests.commtrace.analyze.values.rows import held_by_one, row, sharded


def some(num: int = 3) -> list[tuple[dict[str, object], torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [({}, torch.randn(6, 5, generator=generator)) for _ in range(num)]


@pytest.mark.parametrize(
    ("placements", "sizes"),
    [
        ([Shard(0)], {"tp": 4}),
        ([Replicate()], {"tp": 3}),
        ([Shard(0), Shard(1)], {"dp": 2, "tp": 3}),
        ([Replicate(), Shard(1)], {"dp": 2, "tp": 2}),
        ([Shard(1), Replicate()], {"dp": 7, "tp": 2}),
    ],
)
def test_the_layout_does_not_matter(placements: Sequence[Placement], sizes: dict[str, int]) -> None:
    one, many = tensors(held_by_one(some())), tensors(sharded(some(), placements, sizes))
    assert len(one) == len(many) == 3
    pd.testing.assert_frame_equal(one[[*FACTS]], many[[*FACTS]], rtol=1e-12)
    assert (many["num_differing"] == 0).all()
    assert set(many["layout"]) == {
        " ".join(f"{name}:{_text(each)}" for name, each in zip(sizes, placements, strict=True))
    }


def _text(placement: Placement) -> str:
    return f"S({placement.dim})" if isinstance(placement, Shard) else "R"


def test_partial_sums_add_up_and_have_no_norm() -> None:
    contributions = [torch.randn(4, 3) for _ in range(3)]
    rows = [
        row(rank, 0, {}, part, part)._replace(mesh="tp=3:0,1,2", placements="P(sum)")
        for rank, part in enumerate(contributions)
    ]
    (found,) = tensors(run_of(num_ranks=3, fingerprints=rows)).to_dict("records")
    (expected,) = tensors(held_by_one([({}, torch.stack(contributions).sum(0))])).to_dict("records")
    for name in FACTS[: NUM_SKETCHES + 1]:
        assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-5)
    assert math.isnan(found["norm"])
    assert found["num_nan"] == -1


@pytest.mark.parametrize("placements", ["P(max)", "P(product)"])
def test_values_of_other_reductions_are_unknown(placements: str) -> None:
    part = torch.ones(2)
    rows = [
        row(rank, 0, {}, part, part)._replace(mesh="tp=2:0,1", placements=placements)
        for rank in range(2)
    ]
    (found,) = tensors(run_of(fingerprints=rows)).to_dict("records")
    assert math.isnan(found["total"])


def test_a_tensor_that_lacks_a_rank_is_unknown() -> None:
    frames = sharded(some(1), [Shard(0)], {"tp": 3})
    rows = frames.fingerprints
    from dataclasses import replace

    (found,) = tensors(replace(frames, fingerprints=rows[rows["rank"] != 1])).to_dict("records")
    assert math.isnan(found["sketch_0"])
    assert (found["num_ranks"], found["num_nan"]) == (2, -1)


@pytest.mark.parametrize(
    ("mesh", "placements"),
    [("tp=2", "R"), ("tp=x:0,1", "R"), ("tp=3:0,1", "R"), ("tp=2:4,5", "R"), ("tp=2:0,1", "R,R")],
)
def test_a_damaged_layout_is_unknown(mesh: str, placements: str) -> None:
    part = torch.ones(2)
    rows = [
        row(rank, 0, {}, part, part + rank)._replace(mesh=mesh, placements=placements)
        for rank in range(2)
    ]
    found = tensors(run_of(fingerprints=rows))
    assert found["layout"].tolist() == ["", ""]
    assert found["rank"].tolist() == [0, 1]


def test_plain_tensors_that_all_ranks_have_alike_are_one() -> None:
    part = torch.ones(2)
    rows = [row(rank, 0, {}, part, part) for rank in range(2)]
    (found,) = tensors(run_of(fingerprints=rows)).to_dict("records")
    assert (found["layout"], found["num_ranks"]) == ("equal on all ranks", 2)


def test_replicas_that_differ_are_named_with_the_first_in_time_first() -> None:
    values = some(3)
    frames = sharded(values, [Replicate(), Shard(0)], {"dp": 2, "tp": 2})
    rows = frames.fingerprints.copy()
    # Rank 3 holds the second half, as rank 1 does; rank 2 the first half, as rank 0 does.
    rows.loc[(rows["rank"] == 3) & (rows["id"] == 1), "sketch_2"] += 1.0
    rows.loc[(rows["rank"] == 2) & (rows["id"] == 2), "total"] += 1e-9
    from dataclasses import replace

    found = replicas(replace(frames, fingerprints=rows)).to_dict("records")
    assert [(row["module"], row["ranks"]) for row in found] == [("layer1", "3"), ("layer2", "2")]
    assert found[0]["difference"] > 0.1
    assert found[1]["difference"] == 0.0
    assert replicas(frames).empty
