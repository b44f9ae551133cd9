"""The best split of layers into stages, compared with all splits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest

from commtrace.analyze.pipelines.layers import layer_of
from commtrace.analyze.pipelines.split import best_split


def all_splits(num_layers: int, num_stages: int) -> Iterator[list[int]]:
    for ends in combinations(range(1, num_layers), num_stages - 1):
        edges = [0, *ends, num_layers]
        yield [end - begin for begin, end in pairwise(edges)]


def longest(times: list[int], sizes: list[int]) -> int:
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return max(sum(times[end - size : end]) for size, end in zip(sizes, ends, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_no_other_split_has_a_shorter_longest_stage(seed: int) -> None:
    chance = random.Random(seed)
    times = [chance.randrange(1, 20) for _ in range(chance.randrange(2, 9))]
    num_stages = chance.randrange(1, len(times) + 1)
    found = best_split(times, num_stages)
    assert sum(found) == len(times)
    assert min(found) >= 1
    best = min(longest(times, sizes) for sizes in all_splits(len(times), num_stages))
    assert longest(times, found) == best


@pytest.mark.parametrize(
    ("module", "layer"),
    [
        ("layers.3.attention.wq", "layers.3"),
        ("stage4.layers.3", "stage4.layers.3"),
        ("0.linear", "0"),
        ("norm", "norm"),
        ("output.linear", "output"),
        ("", ""),
    ],
)
def test_a_layer_is_a_module_with_a_number_or_a_part_of_the_stage(module: str, layer: str) -> None:
    assert layer_of(module) == layer
