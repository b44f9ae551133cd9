"""Placements are interned values with the public predicates."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.distributed.tensor as theirs

from dtensor_core.errors import PlacementError
from dtensor_core.placement import (
    Partial,
    Placement,
    Replicate,
    Shard,
    _StridedShard,
    as_placement,
)

ALL = (
    Shard(0),
    Shard(-1),
    Replicate(),
    Partial(),
    Partial("max"),
    _StridedShard(1, split_factor=2),
)


@pytest.mark.parametrize("placement", ALL, ids=repr)
def test_equal_placements_are_the_same_object(placement: Placement) -> None:
    assert pickle.loads(pickle.dumps(placement)) is placement
    assert copy.deepcopy(placement) is placement
    assert copy.copy(placement) is placement


def test_different_placements_differ() -> None:
    assert len(set(ALL)) == len(ALL)
    assert Shard(0) is not Shard(1)
    assert Partial() is Partial("sum")


def test_placements_are_frozen() -> None:
    with pytest.raises(AttributeError, match="Shard is frozen: cannot set dim"):
        Shard(0).dim = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_predicates_answer_for_their_kind_and_argument() -> None:
    assert Shard(1).is_shard()
    assert Shard(1).is_shard(1)
    assert not Shard(1).is_shard(0)
    assert not Shard(1).is_replicate()
    assert Replicate().is_replicate()
    assert not Replicate().is_partial()
    assert Partial("max").is_partial()
    assert Partial("max").is_partial("max")
    assert not Partial("max").is_partial("sum")
    assert not _StridedShard(0, split_factor=2).is_shard()


def test_texts_are_the_usual_ones() -> None:
    assert [str(each) for each in ALL] == ["S(0)", "S(-1)", "R", "P(sum)", "P(max)", "_S(1, 2)"]
    assert repr(Shard(0)) == "Shard(dim=0)"
    assert repr(Replicate()) == "Replicate()"
    assert repr(Partial()) == "Partial(sum)"
    assert repr(_StridedShard(1, split_factor=2)) == "_StridedShard(dim=1, sf=2)"


def test_the_dims_that_a_placement_shards() -> None:
    assert [each.sharded_dim for each in ALL] == [0, -1, None, None, None, 1]
    assert [each.num_blocks for each in ALL] == [1, 1, 1, 1, 1, 2]


def test_an_unknown_reduction_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PlacementError) as error:
        Partial("mean")
    assert str(error.value) == (
        "Partial takes one of sum, avg, product, min, max, band, bor, bxor as reduce_op, got 'mean'"
    )


def test_a_dim_that_is_no_integer_is_refused() -> None:
    with pytest.raises(PlacementError, match="Shard takes an integer dimension, got '0'"):
        Shard("0")  # pyright: ignore[reportArgumentType]
    with pytest.raises(PlacementError, match="positive split_factor, got 0"):
        _StridedShard(0, split_factor=0)


def test_the_placements_of_torch_are_taken_for_the_equal_ones() -> None:
    given = [theirs.Shard(1), theirs.Replicate(), theirs.Partial("max")]
    assert [as_placement(each) for each in given] == [Shard(1), Replicate(), Partial("max")]
    assert as_placement(Shard(1)) is Shard(1)
    with pytest.raises(PlacementError, match="'S' is no placement"):
        as_placement("S")


def test_a_shard_returns_size_and_offset_of_each_chunk() -> None:
    of = Shard.local_shard_size_and_offset
    assert [of(8, 4, rank) for rank in range(4)] == [(2, 0), (2, 2), (2, 4), (2, 6)]
    assert [of(5, 4, rank) for rank in range(4)] == [(2, 0), (2, 2), (1, 4), (0, 5)]
    assert of(0, 4, 3) == (0, 0)


def test_a_shard_splits_a_tensor_into_the_pieces_of_all_coordinates() -> None:
    full = torch.arange(10.0).view(5, 2)
    pieces, short = Shard(0)._split_tensor(full, 4, with_padding=False)
    assert [piece.tolist() for piece in pieces] == [
        full[:2].tolist(),
        full[2:4].tolist(),
        full[4:].tolist(),
        [],
    ]
    assert short == []
    padded, short = Shard(0)._split_tensor(full, 4)
    assert short == [0, 0, 1, 2]
    assert [piece.shape for piece in padded] == [(2, 2)] * 4
    assert padded[2].tolist() == [[8.0, 9.0], [0.0, 0.0]]
    assert [piece.shape for piece in Shard(1)._split_tensor(full, 4)[0]] == [(5, 1)] * 4
