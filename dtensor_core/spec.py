"""Specs: mesh, placements and global tensor metadata of a DTensor, interned.

`Spec(...)` returns the interned instance of its value: equal means identical, and its hash is its
address. `dispatch` can therefore look a call up by a tuple of specs. Derived values (local shape,
text) are computed once per spec. Read by every stage downstream.

Text form: `f32[8,16] dp:S(0) tp:P(sum)`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch

from dtensor_core import layout
from dtensor_core.mesh import DeviceMesh, Identity, axis_name, identity
from dtensor_core.placement import Placement, Replicate

_SHORT_DTYPES = {
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "c64",
    "complex128": "c128",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
}


class TensorMeta(NamedTuple):
    """Global shape, stride (in elements) and dtype of a DTensor."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def _in_numbers(meta: TensorMeta) -> TensorMeta:
    """Replace symbolic sizes by their values, on which a traced graph is then guarded.

    Raises:
        TypeError: No size is symbolic.
    """
    if not any(isinstance(each, torch.SymInt) for each in (*meta.shape, *meta.stride)):
        raise TypeError(f"metadata of a tensor without a hash: {meta}")
    return TensorMeta(
        torch.Size([int(size) for size in meta.shape]),
        tuple(int(step) for step in meta.stride),
        meta.dtype,
    )


class Spec:
    """The layout of a DTensor on its mesh. Interned and frozen: compare with `is`.

    Attributes:
        mesh: The device mesh.
        placements: One placement per mesh axis, with non-negative dims.
        tensor_meta: The global shape, stride (in elements) and dtype, which are attributes too.
        ndim: The number of tensor dimensions.
        mesh_shape: The number of ranks on each mesh axis.
        coords: This rank's coordinate on each axis; None if it is not part of the mesh.
    """

    mesh: DeviceMesh
    placements: tuple[Placement, ...]
    tensor_meta: TensorMeta
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    ndim: int
    mesh_shape: tuple[int, ...]
    coords: tuple[int, ...] | None
    _whose: Identity

    _interned: ClassVar[weakref.WeakValueDictionary[Any, Spec]] = weakref.WeakValueDictionary()
    _lock = threading.Lock()

    def __new__(
        cls, mesh: DeviceMesh, placements: Sequence[Placement], tensor_meta: TensorMeta
    ) -> Spec:
        """Return the interned spec of this value."""
        try:
            return Spec.on(identity(mesh), tuple(placements), tensor_meta)
        except TypeError:  # symbolic sizes have no hash
            return Spec(mesh, placements, _in_numbers(tensor_meta))

    @staticmethod
    def on(whose: Identity, placements: tuple[Placement, ...], tensor_meta: TensorMeta) -> Spec:
        """Return the interned spec of this value, on a mesh given by its identity."""
        key = (whose, placements, tensor_meta)
        known = Spec._interned.get(key)
        if known is not None:
            return known
        made = object.__new__(Spec)
        made._whose, made.mesh = whose, whose.mesh
        made.mesh_shape, made.coords = whose.shape, whose.coords
        made.placements, made.tensor_meta = placements, tensor_meta
        made.shape, made.stride, made.dtype = tensor_meta
        made.ndim = len(made.shape)
        # The setdefault of a WeakValueDictionary is Python code, in which two threads could each
        # store a spec of the same value.
        with Spec._lock:
            return Spec._interned.setdefault(key, made)

    def __copy__(self) -> Spec:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Spec:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (Spec, (self.mesh, self.placements, self.tensor_meta))

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh."""
        return self.mesh

    @cached_property
    def num_shards(self) -> int:
        """The number of shards of the tensor, over all axes."""
        total = 1
        for size, placement in zip(self.mesh.shape, self.placements, strict=True):
            if placement.sharded_dim is not None:
                total *= size
        return total

    @cached_property
    def num_shards_map(self) -> list[int]:
        """The number of shards of each tensor dimension."""
        counts = [1] * self.ndim
        for size, placement in zip(self.mesh.shape, self.placements, strict=True):
            dim = placement.sharded_dim
            if dim is not None:
                counts[dim] *= size
        return counts

    @cached_property
    def dim_map(self) -> list[int]:
        """For each tensor dimension, the last mesh axis that shards it, or -1."""
        axes = [-1] * self.ndim
        for axis, placement in enumerate(self.placements):
            dim = placement.sharded_dim
            if dim is not None:
                axes[dim] = axis
        return axes

    @cached_property
    def sums(self) -> list[int]:
        """The mesh axes along which the tensor is partial."""
        return [axis for axis, placement in enumerate(self.placements) if placement.is_partial()]

    def is_replicated(self) -> bool:
        """True if every rank holds the full tensor."""
        return all(placement.is_replicate() for placement in self.placements)

    def is_sharded(self) -> bool:
        """True if any axis shards the tensor."""
        return any(placement.sharded_dim is not None for placement in self.placements)

    @cached_property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of this rank's local tensor."""
        return layout.local_shape(self.shape, self.placements, self.mesh_shape, self.coords)

    @cached_property
    def is_even(self) -> bool:
        """True if every rank holds a shard of the same shape."""
        return layout.is_even(self.shape, self.placements, self.mesh_shape)

    def extents(self, dim: int) -> tuple[layout.Extent, ...]:
        """Return the pieces of a dimension that this rank holds, in the order of local storage."""
        coords = self.coords
        if coords is None:
            return (layout.Extent(0, 0),)
        shardings = layout.shardings_of(self.placements, self.mesh_shape, coords, dim)
        return layout.held_extents(self.shape[dim], shardings)

    def part_of(self, full: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a full tensor; a view if it is in a single piece."""
        if self.coords is None:
            return full.new_zeros(self.local_shape)
        part = full
        for dim, size in enumerate(self.local_shape):
            if size != self.shape[dim]:
                pieces = [part.narrow(dim, piece.offset, piece.size) for piece in self.extents(dim)]
                part = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)
        return part

    def with_placements(self, placements: Sequence[Placement]) -> Spec:
        """Return the spec of the same tensor in another layout."""
        return Spec.on(self._whose, tuple(placements), self.tensor_meta)

    def replicated(self) -> Spec:
        """Return the spec of the same tensor, replicated on every rank."""
        return self.with_placements((Replicate(),) * len(self.placements))

    @cached_property
    def layout_text(self) -> str:
        """The placements by axis name: `dp:S(0) tp:P(sum)`."""
        return " ".join(
            f"{axis_name(self.mesh, axis)}:{placement.text}"
            for axis, placement in enumerate(self.placements)
        )

    @cached_property
    def text(self) -> str:
        """The spec as text: `f32[8,16] dp:S(0) tp:P(sum)`."""
        name = str(self.dtype).removeprefix("torch.")
        shape = ",".join(map(str, self.shape))
        return f"{_SHORT_DTYPES.get(name, name)}[{shape}] {self.layout_text}"

    def __repr__(self) -> str:
        return f"Spec({self.text})"
