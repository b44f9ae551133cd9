"""Numbers of elements of tensors, from texts of shapes such as `[8,16];[4]`."""

from __future__ import annotations

from functools import cache
from math import prod


@cache
def numels(shapes: str) -> tuple[int, ...]:
    """Return the number of elements of each tensor, 1 for a scalar, `[]`."""
    return tuple(
        [
            prod([int(size) for size in shape.strip("[]").split(",") if size.isdigit()])
            for shape in shapes.split(";")
            if shape
        ]
    )


def numel(shape: str) -> int:
    """Return the number of elements of a tensor."""
    return sum(numels(shape))
