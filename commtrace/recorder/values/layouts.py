"""Layout of an observed tensor: the part of the global tensor that this rank holds.

It is read from the tensor itself. A distributed tensor, of dtensor_core or of torch, states its
mesh and its placements; of any other tensor only its own shape is known. A dimension that several
mesh axes shard is divided from the first axis to the last, in chunks of ceil(size / ranks); a
strided shard takes its chunk of each of `split_factor` blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from commtrace.recorder.values.flat_parameters import FlatPart
from commtrace.recorder.values.sketches import Index, RangeWeights, Weights, is_long

_MAX_LAYOUTS = 4096
_MAX_BYTES = 1 << 28
"""Bound on the random numbers that are kept; a tensor of many elements may need more alone."""
_KEPT = "_local_tensor"
_SHARDS = frozenset({"Shard", "_StridedShard"})
"""Classes of placements, of dtensor_core and of torch, whose elements are known."""


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Layout of a tensor on this rank.

    Attributes:
        shape: shape of the global tensor.
        mesh: sizes of the mesh axes and its ranks, `dp=2,tp=2:0,1,2,3`; empty if unknown.
        placements: placement on each axis, `R,S(1)`; empty if unknown.
        weights: random numbers of this rank's elements; None if it is not known which they are.
    """

    shape: tuple[int, ...]
    mesh: str = ""
    placements: str = ""
    weights: Weights | RangeWeights | None = None


class Layouts:
    """Layouts of the tensors that a process has observed."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Any, TensorLayout]] = {}
        self._num_bytes = 0

    def of(
        self, tensor: torch.Tensor, group: str = "", placement: str = "R"
    ) -> tuple[torch.Tensor, TensorLayout]:
        """Return the local elements of a tensor, and its layout.

        Args:
            tensor: the tensor.
            group: name, size and ranks of the group whose ranks hold it if it is not a distributed
                tensor, `replicas=2:0,1`; empty if unknown.
            placement: its placement on that group; empty if each rank has data of its own.
        """
        local = getattr(tensor, _KEPT, None)
        if local is None or not hasattr(tensor, "placements"):
            return tensor, self._of_plain(tensor, group, placement)
        mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
        placements = tuple(tensor.placements)  # type: ignore[attr-defined]
        return local, self._of_distributed(local, mesh, placements, tuple(tensor.shape))

    def of_declared(self, part: torch.Tensor, mesh: Any, placements: Sequence[Any]) -> TensorLayout:
        """Return the layout of a plain tensor whose mesh and placements the program declares.

        Sharded dimensions are divided evenly, so that the ranks' parts have the same shape.
        """
        shape = list(part.shape)
        for placement, size in zip(placements, mesh.shape, strict=True):
            dim = getattr(placement, "dim", None)
            if dim is not None:
                shape[dim] *= size
        return self._of_distributed(part, mesh, tuple(placements), tuple(shape))

    def of_flat(self, part: FlatPart, elements: torch.Tensor) -> TensorLayout:
        """Return the layout of a part of an original parameter, or of its gradient or states."""
        end = part.begin + part.size
        key = (part.shape, part.begin, end, part.mesh, part.placements, elements.device)
        known = self._known.get(key)
        if known is None:
            weights = RangeWeights(part.shape, part.begin, end, elements.device)
            layout = TensorLayout(part.shape, part.mesh, part.placements, weights)
            known = self._keep(key, None, layout)
        return known[1]

    def _of_distributed(
        self, local: torch.Tensor, mesh: Any, placements: tuple[Any, ...], shape: tuple[int, ...]
    ) -> TensorLayout:
        key = (id(mesh), _rank(), placements, shape, tuple(local.shape))
        key = (*key, local.device, local.is_complex())
        known = self._known.get(key)
        if known is None:
            layout = _of_distributed(mesh, placements, shape, local)
            # The mesh is kept alive, so that its identity is not reused.
            known = self._keep(key, mesh, layout)
        return known[1]

    def _of_plain(self, tensor: torch.Tensor, group: str, placement: str) -> TensorLayout:
        shape = tuple(tensor.shape)
        key = (group, placement, shape, tensor.device, tensor.is_complex())
        known = self._known.get(key)
        if known is None:
            weights = _weights(shape, [slice(None)] * len(shape), tensor)
            of_group = placement if group else ""
            known = self._keep(key, None, TensorLayout(shape, group, of_group, weights))
        return known[1]

    def _keep(
        self, key: tuple[Any, ...], mesh: Any, layout: TensorLayout
    ) -> tuple[Any, TensorLayout]:
        added = layout.weights.num_bytes if layout.weights is not None else 0
        if len(self._known) >= _MAX_LAYOUTS or self._num_bytes + added > _MAX_BYTES:
            self._known.clear()
            self._num_bytes = 0
        self._num_bytes += added
        self._known[key] = known = (mesh, layout)
        return known


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _of_distributed(
    mesh: Any, placements: Sequence[Any], shape: tuple[int, ...], local: torch.Tensor
) -> TensorLayout:
    coordinate = mesh.get_coordinate()
    sizes = tuple(mesh.shape)
    names = mesh.mesh_dim_names or tuple(map(str, range(len(sizes))))
    axes = ",".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))
    ranks = ",".join(map(str, mesh.mesh.flatten().tolist()))
    texts = [_text(each) for each in placements]
    weights = None
    if coordinate is not None and all(texts):
        index = indices(placements, shape, sizes, coordinate)
        if [_length(own, size) for own, size in zip(index, shape, strict=True)] == [*local.shape]:
            weights = _weights(shape, index, local)
    return TensorLayout(shape, f"{axes}:{ranks}", ",".join(texts) if all(texts) else "", weights)


def _weights(
    shape: tuple[int, ...], index: list[Index], local: torch.Tensor
) -> Weights | RangeWeights:
    """Return the random numbers of a part; a complex element counts as two real elements."""
    if local.is_complex():
        return Weights((*shape, 2), [*index, slice(None)], local.device)
    if is_long(shape):
        (own,) = index
        begin = 0 if isinstance(own, slice) or not len(own) else int(own[0])
        if isinstance(own, slice) or not len(own) or int(own[-1]) - begin + 1 == len(own):
            return RangeWeights(shape, begin, begin + len(local), local.device)
    return Weights(shape, index, local.device)


def indices(
    placements: Sequence[Any], shape: Sequence[int], sizes: Sequence[int], coordinate: Sequence[int]
) -> list[Index]:
    """Return the global indices of a rank's elements, for each dimension.

    Args:
        placements: placement on each mesh axis.
        shape: shape of the global tensor.
        sizes: size of each axis.
        coordinate: the rank's coordinate on each axis.
    """
    index: list[Index] = [slice(None) for _ in shape]
    for placement, num_shards, place in zip(placements, sizes, coordinate, strict=True):
        dim = getattr(placement, "dim", None)
        if dim is None:
            continue
        own = index[dim]
        before = torch.arange(shape[dim]) if isinstance(own, slice) else own
        blocks = _chunks(before, getattr(placement, "split_factor", 1))
        index[dim] = torch.cat([_chunks(block, num_shards)[place] for block in blocks])
    return index


def _chunks(index: torch.Tensor, num: int) -> list[torch.Tensor]:
    """Return chunks of ceil(length / num) elements; the last chunks may be empty."""
    size = max(1, -(-len(index) // num))
    return [index[size * place : size * (place + 1)] for place in range(num)]


def _length(index: Index, size: int) -> int:
    return size if isinstance(index, slice) else len(index)


def _text(placement: Any) -> str:
    """Return a placement as text: R, S(1), S(0/2) of two blocks, P(sum); empty if unknown.

    Partial values of another class, such as torch's `_MaskPartial`, are named by it: their sum is
    not the tensor.
    """
    if placement.is_replicate():
        return "R"
    name = type(placement).__name__
    if name in _SHARDS:
        factor = getattr(placement, "split_factor", 1)
        return f"S({placement.dim})" if factor == 1 else f"S({placement.dim}/{factor})"
    if not placement.is_partial():
        return ""
    reduce_op = getattr(placement, "reduce_op", None)
    return f"P({reduce_op if name == 'Partial' and isinstance(reduce_op, str) else name})"
