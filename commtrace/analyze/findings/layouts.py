"""Parser for layouts in text form, `f32[4,64,256] dp:S(0) tp:P(sum)`: dtype, shape, placements."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from math import prod

import pandas as pd

_TEXT = re.compile(r"^(?P<dtype>\w+)\[(?P<shape>[\d,]*)\](?P<rest>.*)$")
_PLACEMENT = re.compile(r"(\w+):(_?[A-Z]\w*(?:\([^)]*\))?)")

# A shard, or a strided one with its number of blocks: `_S(0, 2)`.
_SHARD = re.compile(r"_?S\((\d+)(?:, \d+)?\)")

_ITEM_BYTES = {
    "f64": 8,
    "i64": 8,
    "f32": 4,
    "i32": 4,
    "f16": 2,
    "bf16": 2,
    "i16": 2,
    "i8": 1,
    "u8": 1,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """A parsed layout.

    Attributes:
        dtype: Short name of the element type: `f32`.
        shape: Global shape.
        placements: Pairs of mesh axis and placement: `S(0)`, `R`, `P(sum)`.
    """

    dtype: str
    shape: tuple[int, ...]
    placements: tuple[tuple[str, str], ...]

    @property
    def num_bytes(self) -> int:
        """Size of the global tensor; 0 if the dtype is unknown."""
        return prod(self.shape) * _ITEM_BYTES.get(self.dtype, 0)

    @property
    def is_replicated(self) -> bool:
        """True if the tensor is replicated along every mesh axis."""
        return {placement for _, placement in self.placements} == {"R"}

    def on(self, axis: str) -> str:
        """Return the placement along a mesh axis; empty if the layout has no such axis."""
        return dict(self.placements).get(axis, "")

    @property
    def sharded(self) -> dict[str, int]:
        """The sharded dimension of each mesh axis along which the tensor is sharded."""
        found = ((axis, _SHARD.fullmatch(placement)) for axis, placement in self.placements)
        return {axis: int(shard[1]) for axis, shard in found if shard}


@cache
def layout(text: str) -> Layout | None:
    """Parse a layout; None if the text is not a layout.

    >>> layout("f32[8,16] tp:S(1)").sharded
    {'tp': 1}
    """
    found = _TEXT.match(text)
    if found is None:
        return None
    shape = tuple(int(size) for size in found["shape"].split(",") if size)
    return Layout(found["dtype"], shape, tuple(_PLACEMENT.findall(found["rest"])))


def padding_bytes(calls: pd.DataFrame, specs: pd.Series) -> pd.Series:
    """Return the bytes that calls send beyond the size of a tensor with one sharded dimension.

    Args:
        calls: Rows of table `comm`.
        specs: The tensor's layout for each call; the result is nan for any other tensor.
    """
    known = {text: layout(text) for text in specs.unique() if text}
    sizes = {
        text: each.num_bytes
        for text, each in known.items()
        if each is not None and len(each.sharded) == 1
    }
    tensor_bytes = specs.map(sizes).astype("float64")
    return (calls["payload_bytes"] - tensor_bytes).where(tensor_bytes > 0)
