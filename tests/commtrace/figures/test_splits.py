from __future__ import annotations

import pytest

from commtrace.analyze.experts.all_to_all_splits import all_to_all_splits
from commtrace.figures.splits import MAX_SIDE, MOST_LAYERS, splits
from tests.commtrace.analyze.rows import call, group, run_of


def exchange(rank: int, sent: str, received: str, number: int, **columns: object) -> object:
    known = {"rank": rank, "id": number, "seq": number, "kind": "all_to_all", "dtype": "float32"}
    known |= {"input_shapes": "[3,1]", "input_splits": sent, "output_splits": received, "step": 0}
    return call(**(known | columns))


def pair(sent: list[list[int]], number: int = 0, **columns: object) -> list[object]:
    """A dispatch and its combine on all ranks."""
    back = [list(column) for column in zip(*sent, strict=True)]
    texts = [[",".join(map(str, row)) for row in each] for each in (sent, back)]
    return [
        exchange(rank, *(texts[way][rank], texts[1 - way][rank]), 2 * number + way, **columns)
        for way in (0, 1)
        for rank in range(len(sent))
    ]


def test_a_layer_has_a_cell_for_each_source_and_rank_of_experts() -> None:
    table = all_to_all_splits(run_of(pair([[4, 8], [0, 16]], module="m")))
    (trace,) = splits(table).data
    # The combine counts as its dispatch.
    assert [list(row) for row in trace.z] == [[8, 16], [None, 32]]
    assert "from rank 0 to the experts of rank 1" in trace.hovertext[0][1]
    assert "rank 1 receives 1.7 times the mean" in trace.hovertext[0][1]


def test_of_many_layers_the_most_uneven_are_drawn() -> None:
    calls = [
        each
        for number in range(MOST_LAYERS + 3)
        for each in pair([[4, 4 + 4 * number], [4, 4]], number, module=f"layers.{number:02}")
    ]
    figure = splits(all_to_all_splits(run_of(calls)))
    assert len(figure.data) == MOST_LAYERS
    texts = [note.text for note in figure.layout.annotations]
    assert texts[:-1] == [f"layers.{number:02}" for number in range(3, MOST_LAYERS + 3)]
    assert texts[-1] == f"the {MOST_LAYERS} most uneven of {MOST_LAYERS + 3} layers"


@pytest.mark.parametrize(("size", "side"), [(MAX_SIDE, MAX_SIDE), (MAX_SIDE + 2, 33)])
def test_above_the_largest_side_a_cell_is_a_block_of_ranks(size: int, side: int) -> None:
    splits_of_rank = ",".join(["4"] * size)
    calls = [exchange(rank, splits_of_rank, splits_of_rank, 0) for rank in range(size)]
    frames = run_of(calls, num_ranks=size, groups=[group(ranks=range(size))])
    (trace,) = splits(all_to_all_splits(frames)).data
    assert len(trace.z) == side
    assert sum(map(sum, trace.z)) == 4 * size * size
