"""Splits of a model's layers into consecutive pipeline stages, so that the slowest is fastest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def best_split(times: Sequence[float], num_stages: int) -> list[int]:
    """Return the number of layers of each stage for which the longest stage is shortest.

    Each stage has at least one layer. Among equal splits, the last stages have the most layers.

    Args:
        times: Time of each layer, in order.
        num_stages: Number of stages, at most the number of layers.

    >>> best_split([1, 1, 1, 3], 2)
    [3, 1]
    """
    until = [0.0, *accumulate(times)]
    # The shortest longest stage of the first `i` layers in `k` stages, and where its last begins.
    longest = [0.0, *[float("inf")] * len(times)]
    begins: list[list[int]] = []
    for stages in range(1, num_stages + 1):
        found = [(float("inf"), 0)] * (len(times) + 1)
        for end in range(stages, len(times) + 1):
            found[end] = min(
                (max(longest[begin], until[end] - until[begin]), begin)
                for begin in range(stages - 1, end)
            )
        longest = [time for time, _ in found]
        begins.append([begin for _, begin in found])
    sizes: list[int] = []
    end = len(times)
    for of_stage in reversed(begins):
        sizes.append(end - of_stage[end])
        end = of_stage[end]
    return sizes[::-1]
