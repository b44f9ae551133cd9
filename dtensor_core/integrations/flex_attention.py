"""`torch.nn.attention.flex_attention` of DTensors: each rank attends with its part of the queries.

Batches, heads and queries may be sharded; keys and values follow in batches and heads, and are
replicated where queries are sharded. Each rank calls torch's function with local tensors, its part
of the block mask, and `score_mod` and `mask_mod` with global indices. torch's function is changed
in place, once it is loaded, so that names which hold it already work, too.

Shapes: queries [B, Hq, L, E], keys [B, Hkv, S, E], values [B, Hkv, S, Ev], all of them global.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch

from dtensor_core.errors import MixedTensorError, PlacementError
from dtensor_core.integrations.when_loaded import when_loaded
from dtensor_core.layout import local_extent
from dtensor_core.placement import Partial, Placement, Replicate, Shard
from dtensor_core.spec import Spec
from dtensor_core.tensor import DTensor

_BATCH, _HEADS, _QUERIES = range(3)
_REPLICATE = Replicate()


def install() -> None:
    """Change torch's function once it is loaded."""
    when_loaded("torch.nn.attention.flex_attention", patch)


def patch(module: Any) -> None:
    """Make `flex_attention` take DTensors."""
    function = module.flex_attention
    original = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )
    original.__kwdefaults__ = function.__kwdefaults__

    def attend(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(each, DTensor) for each in (query, key, value)):
            return of_dtensors(original, query, key, value, *args, **kwargs)
        return original(query, key, value, *args, **kwargs)

    module._dtensor_core_attend = attend
    function.__wrapped__ = original  # its signature
    function.__code__ = _through.__code__
    function.__defaults__ = function.__kwdefaults__ = None


def _through(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    return _dtensor_core_attend(query, key, value, *args, **kwargs)  # noqa: F821  # pyright: ignore


@dataclass(frozen=True, slots=True)
class _Parts:
    """Placements of queries and of keys, and this rank's part of batches, heads and queries."""

    queries: tuple[Placement, ...]
    keys: tuple[Placement, ...]
    offsets: tuple[int, int, int]
    sizes: tuple[int, int, int]


def of_dtensors(
    attend: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any = None,
    block_mask: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Return attention of DTensors, sharded as the queries are, or as keys are in batch or heads.

    Raises:
        MixedTensorError: Some of query, key and value are plain tensors.
        PlacementError: They are on different meshes; or a function for scores or the mask holds a
            DTensor, or a tensor whose gradient would be partial on each rank.
    """
    _check((query, key, value), (score_mod, getattr(block_mask, "mask_mod", None)))
    parts = _parts(query._spec, key._spec, value._spec, block_mask)
    shards = [isinstance(each, Shard) for each in parts.queries]
    # Each rank's queries contribute to the gradient of keys that it shares with other ranks.
    shared = [
        Partial() if sharded and place is _REPLICATE else place
        for sharded, place in zip(shards, parts.keys, strict=True)
    ]
    local = query.redistribute(placements=parts.queries).to_local()
    keys, values = (
        each.redistribute(placements=parts.keys).to_local(grad_placements=shared)
        for each in (key, value)
    )
    made = attend(
        *map(_materialized, (local, keys, values)),
        _moved(score_mod, parts.offsets, 1),
        _part_of(block_mask, parts),
        *args,
        **kwargs,
    )
    order = sorted(range(3), key=lambda dim: -query.stride(dim))
    return _wrapped(made, query, parts, order)


def _check(tensors: Sequence[Any], functions: Sequence[Any]) -> None:
    for each in tensors:
        if not isinstance(each, DTensor):
            raise MixedTensorError(
                "flex_attention: got mixed torch.Tensor and DTensor",
                found=f"a torch.Tensor of shape {tuple(each.shape)} beside DTensors",
                why="the layout of a plain tensor on the mesh is unknown",
                hint="make it a DTensor by DTensor.from_local or distribute_tensor",
            )
    meshes = {each._spec.mesh for each in tensors}
    if len(meshes) > 1:
        raise PlacementError(
            "flex_attention of DTensors on different meshes",
            found=", ".join(map(str, meshes)),
            hint="distribute query, key and value over the same mesh",
        )
    for tensor in _held(functions):
        if isinstance(tensor, DTensor) or tensor.requires_grad:
            is_ours = isinstance(tensor, DTensor)
            raise PlacementError(
                "flex_attention with a score_mod or mask_mod that holds a tensor",
                found=tensor._spec.text if is_ours else f"a parameter of {tuple(tensor.shape)}",
                why="these functions run on the numbers of a single rank"
                if is_ours
                else "each rank would have the gradient of its own part of the scores",
                hint="hold its full_tensor().detach()" if is_ours else "hold its detach()",
            )


def _held(functions: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that functions hold: in closures, partial arguments and defaults."""
    for function in functions:
        if isinstance(function, partial):
            yield from _held((function.func, *function.args, *function.keywords.values()))
        elif isinstance(function, torch.Tensor):
            yield function
        elif isinstance(function, FunctionType):
            cells = (cell.cell_contents for cell in function.__closure__ or () if cell)
            yield from _held((*cells, *(function.__defaults__ or ())))


def _parts(query: Spec, key: Spec, value: Spec, block_mask: Any) -> _Parts:
    """Choose a layout from global information only, equal on all ranks."""
    queries: list[Placement] = [_REPLICATE] * len(query.placements)
    keys = list(queries)
    for axis, size in enumerate(query.mesh_shape):
        for placement in (query.placements[axis], key.placements[axis], value.placements[axis]):
            if not isinstance(placement, Shard) or placement.dim > _QUERIES:
                continue
            dim = placement.dim
            if dim == _QUERIES and placement is not query.placements[axis]:
                continue
            if not _can_split(query, key, dim, (*_sizes_of(query, queries, dim), size), block_mask):
                continue
            queries[axis] = placement
            if (dim != _QUERIES and query.shape[dim] == key.shape[dim]) or dim == _HEADS:
                keys[axis] = placement
            break
    offsets, sizes = [0] * 3, list(query.shape[:3])
    for placement, count, coord in zip(queries, query.mesh_shape, query.coords or (), strict=False):
        if isinstance(placement, Shard):
            piece = local_extent(sizes[placement.dim], count, coord)
            offsets[placement.dim] += piece.offset
            sizes[placement.dim] = piece.size
    return _Parts(tuple(queries), tuple(keys), tuple(offsets), tuple(sizes))  # pyright: ignore


def _sizes_of(spec: Spec, placements: Sequence[Placement], dim: int) -> list[int]:
    """Return the numbers of ranks of the axes that shard a dimension."""
    pairs = zip(spec.mesh_shape, placements, strict=True)
    return [size for size, placement in pairs if placement == Shard(dim)]


def _can_split(query: Spec, key: Spec, dim: int, counts: Sequence[int], block_mask: Any) -> bool:
    """True if no rank is left without queries, and groups of heads and blocks stay together."""
    length, total = query.shape[dim], torch.Size(counts).numel()
    if dim == _HEADS and query.shape[dim] != key.shape[dim]:
        return key.shape[dim] % total == 0
    if dim == _QUERIES and block_mask is not None:
        return length % total == 0 and length // total % block_mask.BLOCK_SIZE[0] == 0
    if len(counts) > 1:
        return length % total == 0
    return length > (total - 1) * -(-length // total)


def _moved(function: Any, offsets: tuple[int, int, int], num_scores: int) -> Any:
    """Return a function of scores and indices that adds this rank's offsets to the indices."""
    if function is None or not any(offsets):
        return function
    b0, h0, q0 = offsets

    def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return function(score, b + b0, h + h0, q + q0, k)

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return function(b + b0, h + h0, q + q0, k)

    return score_mod if num_scores else mask_mod


# Inductor's kernel for CPUs reads a view that is made in the same graph from the beginning of the
# tensor that it is a view of, or fails for it. It can read results of operators unknown to it.
@torch.library.custom_op("dtensor_core::copied", mutates_args=())
def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy."""
    return tensor.clone(memory_format=torch.contiguous_format)


@_copied.register_fake
def _like_a_copy(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


_copied.register_autograd(lambda _, grad: grad)


def _materialized(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor; a copy in the graphs of a compiler on a CPU."""
    on_cpu = tensor.device.type == "cpu"
    return _copied(tensor) if on_cpu and torch.compiler.is_compiling() else tensor


def _part_of(mask: Any, parts: _Parts) -> Any:
    """Return the block mask of this rank's batches, heads and queries."""
    if mask is None:
        return None
    rows = mask.kv_num_blocks.shape[-1]
    block = mask.BLOCK_SIZE[0]
    length = mask.seq_lengths[0]
    wanted = (
        (parts.offsets[0], parts.sizes[0]),
        (parts.offsets[1], parts.sizes[1]),
        (parts.offsets[2] // block, -(-parts.sizes[2] // block)),
    )
    # A mask may have one batch or head for all.
    cuts = [
        (dim, offset, size)
        for dim, (offset, size) in enumerate(wanted)
        if (mask.kv_num_blocks.shape[dim] > 1 or dim == _QUERIES)
        and size < (rows if dim == _QUERIES else mask.kv_num_blocks.shape[dim])
    ]
    moved = _moved(mask.mask_mod, parts.offsets, 0)
    if not cuts and moved is mask.mask_mod:
        return mask

    def cut(tensor: Any) -> Any:
        if tensor is None or not cuts:
            return tensor
        for dim, offset, size in cuts:
            tensor = tensor.narrow(dim, offset, size)
        return _materialized(tensor)

    is_cut = any(dim == _QUERIES for dim, _, _ in cuts)
    return type(mask).from_kv_blocks(
        cut(mask.kv_num_blocks),
        cut(mask.kv_indices),
        cut(mask.full_kv_num_blocks),
        cut(mask.full_kv_indices),
        mask.BLOCK_SIZE,
        moved,
        (parts.sizes[2] if is_cut else length, mask.seq_lengths[1]),
    )


def _wrapped(made: Any, query: DTensor, parts: _Parts, order: Sequence[int]) -> Any:
    """Return the local results as DTensors: the output, and statistics [B, Hq, L]."""
    if made is None:
        return None
    if isinstance(made, tuple):
        each = [_wrapped(part, query, parts, order) for part in made]
        return type(made)(*each) if hasattr(made, "_fields") else tuple(each)
    shape = (*query.shape[:3], *made.shape[3:])
    stride, step = [0] * len(shape), 1
    for dim in (*range(len(shape) - 1, 2, -1), *reversed(order)):
        stride[dim], step = step, step * max(shape[dim], 1)
    return DTensor.from_local(
        made, query.device_mesh, parts.queries, shape=shape, stride=tuple(stride)
    )
