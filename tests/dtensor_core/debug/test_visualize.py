"""Tables that show which rank holds which part of a tensor."""

from __future__ import annotations

import torch

from dtensor_core import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    _StridedShard,
    distribute_tensor,
    init_device_mesh,
)
from dtensor_core.debug import visualize_sharding
from dtensor_core.testing.fake import fake_world


def drawn(capsys, shape, placements, mesh=(2, 2), *, rank=0, header="", use_rich=False) -> str:
    """Return the printed table of a tensor of a shape."""
    names = ("dp", "cp", "tp")[: len(mesh)] if len(mesh) > 2 else ("dp", "tp")[: len(mesh)]
    capsys.readouterr()
    with fake_world(torch.Size(mesh).numel(), rank=rank):
        where = init_device_mesh("cpu", mesh, mesh_dim_names=names)
        if any(placement.is_partial() for placement in placements):
            tensor = DTensor.from_local(torch.ones(shape), where, placements)
        else:
            tensor = distribute_tensor(torch.ones(shape), where, placements, src_data_rank=None)
        visualize_sharding(tensor, header, use_rich)
    return capsys.readouterr().out


def test_a_matrix_is_drawn_as_it_is(capsys) -> None:
    assert drawn(capsys, (8, 6), [Shard(0), Shard(1)], header="weight") == (
        "weight\n"
        "f32[8,6] dp:S(0) tp:S(1) on cpu\n"
        "         Col 0-2  Col 3-5\n"
        "-------  -------  -------\n"
        "Row 0-3  cpu:0    cpu:1\n"
        "Row 4-7  cpu:2    cpu:3\n"
    )


def test_replicas_share_a_cell(capsys) -> None:
    assert drawn(capsys, (8, 6), [Replicate(), Shard(0)]) == (
        "f32[8,6] dp:R tp:S(0) on cpu\n"
        "         Col 0-5\n"
        "-------  -------\n"
        "Row 0-3  cpu:0,2\n"
        "Row 4-7  cpu:1,3\n"
    )


def test_a_vector_is_one_line_and_idle_ranks_are_named(capsys) -> None:
    assert drawn(capsys, (5,), [Shard(0)], (4,)) == (
        "f32[5] dp:S(0) on cpu; no part of it on cpu:3\n"
        "Col 0-1  Col 2-3  Col 4-4\n"
        "-------  -------  -------\n"
        "cpu:0    cpu:1    cpu:2\n"
    )


def test_a_scalar_has_no_table(capsys) -> None:
    assert drawn(capsys, (), [Partial()], (2,)) == (
        "f32[] dp:P(sum) on cpu, the ranks of a cell hold partial sums of it\ncpu:0,1\n"
    )


def test_a_strided_shard_shows_the_pieces_where_they_are(capsys) -> None:
    lines = drawn(capsys, (8, 2), [_StridedShard(0, split_factor=2), Shard(0)]).splitlines()
    assert [line.split()[-1] for line in lines[3:]] == ["cpu:0", "cpu:2", "cpu:1", "cpu:3"]


def test_of_many_dims_the_sharded_ones_are_shown(capsys) -> None:
    assert drawn(capsys, (8, 6, 4), [Shard(2), Shard(0)]) == (
        "f32[8,6,4] dp:S(2) tp:S(0) on cpu\n"
        "            dim 2: 0-1  dim 2: 2-3\n"
        "----------  ----------  ----------\n"
        "dim 0: 0-3  cpu:0       cpu:2\n"
        "dim 0: 4-7  cpu:1       cpu:3\n"
    )


def test_three_sharded_dims_have_a_table_for_each_piece_of_the_first(capsys) -> None:
    text = drawn(capsys, (4, 4, 4, 2), [Shard(0), Shard(1), Shard(2)], (2, 2, 2))
    first, second = text.split("\n\n")[1:]
    assert first.startswith("dim 0: 0-1\n")
    assert second.startswith("dim 0: 2-3\n")
    assert [f"cpu:{rank}" in first for rank in range(8)] == [True] * 4 + [False] * 4


def test_only_the_first_rank_prints_and_nothing_for_no_elements(capsys) -> None:
    assert drawn(capsys, (8, 6), [Shard(0), Shard(1)], rank=1) == ""
    assert drawn(capsys, (0, 6), [Shard(0), Shard(1)]) == ""


def test_rich_draws_the_same_cells(capsys) -> None:
    text = drawn(capsys, (8, 6), [Shard(0), Shard(1)], use_rich=True)
    assert "┌" in text
    assert all(f"cpu:{rank}" in text for rank in range(4))
    assert "Row 4-7" in text
