"""Context parallelism: attention of plain tensors with the sequence sharded over a mesh.

Inside of `context_parallel` each rank holds a part of every sequence. Attention gathers keys and
values, or rotates them (`ring`), and each rank attends with its own queries. Gradients of keys and
values travel back the same way. Causal attention takes longer for late than for early queries. A
sequence is therefore split into twice as many pieces as there are ranks, and each rank holds a
piece of the head and its counterpart of the tail: rank r of n has pieces r and 2n - 1 - r.

Shapes: queries, keys and values are [..., L / n, E] on each rank, with batches B and heads in
front.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from dtensor_core.errors import MeshError, PlacementError, RuleError
from dtensor_core.experimental.ring import Ring
from dtensor_core.mesh import DeviceMesh
from dtensor_core.placement import Partial, Replicate, Shard
from dtensor_core.random import per_rank
from dtensor_core.tensor import DTensor
from dtensor_core.torch_internals.tensors import assert_on_device

_ROTATIONS = ("allgather", "alltoall")


@dataclass(slots=True)
class _Options:
    """Options that programs set before they enter a context."""

    enable_load_balance: bool = True
    rotate_method: str = _ROTATIONS[0]


_cp_options = _Options()


class UnsupportedAttentionError(RuleError, NotImplementedError):
    """A form of attention that is not supported on parts of a sequence."""


def set_rotate_method(rotate_method: str) -> None:
    """Select how keys and values travel: "allgather", or "alltoall" from each rank to the next.

    Gathering takes fewer messages; with rotation, a rank holds the keys and values of a single rank
    at a time.

    Raises:
        UnsupportedAttentionError: There is no such method (a NotImplementedError).
    """
    if rotate_method not in _ROTATIONS:
        raise UnsupportedAttentionError(
            f"to rotate keys and values by {rotate_method!r}",
            found=f"the methods {', '.join(_ROTATIONS)}",
        )
    _cp_options.rotate_method = rotate_method


@contextmanager
def context_parallel(
    mesh: DeviceMesh,
    *,
    buffers: Sequence[torch.Tensor] | None = None,
    buffer_seq_dims: Sequence[int] | None = None,
    no_restore_buffers: set[torch.Tensor] | None = None,
) -> Iterator[None]:
    """Shard `buffers` along their sequence, in place, and run attention on sharded sequences.

    Forward and backward must be inside. There, `F.scaled_dot_product_attention` of plain tensors,
    causal or not, attends over the full sequence. Afterwards the buffers are restored, except those
    in `no_restore_buffers`. Only keys, values and their gradients are communicated.

    Args:
        mesh: A one-axis mesh.
        buffers: The tensors to shard.
        buffer_seq_dims: The sequence dim of each buffer.
        no_restore_buffers: The buffers to leave sharded.

    Raises:
        PlacementError: The lists don't fit together, or the ranks can't share the sequence evenly
            (a ValueError).
        MeshError: The mesh has several axes (a ValueError).
    """
    sharded, dims, left = (
        list(buffers or ()),
        list(buffer_seq_dims or ()),
        no_restore_buffers or set(),
    )
    _check(mesh, sharded, dims, left)
    is_paired = _cp_options.enable_load_balance and all(
        buffer.shape[dim] % (2 * mesh.size()) == 0
        for buffer, dim in zip(sharded, dims, strict=True)
    )
    before: list[tuple[torch.Tensor, torch.Tensor]] = []
    with torch.no_grad():
        for buffer, dim in zip(sharded, dims, strict=True):
            if not any(buffer is each for each in left):
                before.append((buffer, buffer.clone()))
            pieces = buffer.chunk(mesh.size() * (1 + is_paired), dim)
            part = torch.cat([pieces[number] for number in _numbers(mesh, is_paired)], dim)
            buffer.resize_(part.shape).copy_(part)
    try:
        with _Attention(mesh, is_paired):
            yield
    finally:
        with torch.no_grad():
            for buffer, full in before:
                buffer.resize_(full.shape).copy_(full)


@torch.no_grad()
def context_parallel_unshard(
    mesh: DeviceMesh, buffers: Sequence[torch.Tensor], seq_dims: Sequence[int]
) -> list[torch.Tensor]:
    """Gather tensors that `context_parallel` has sharded, or results computed from them.

    Args:
        mesh: The mesh that `context_parallel` was called with.
        buffers: The sharded tensors.
        seq_dims: The sequence dimension of each buffer.
    """
    is_paired = _cp_options.enable_load_balance and buffers[0].shape[seq_dims[0]] % 2 == 0
    return [
        _gathered(buffer, dim, mesh, is_paired)
        for buffer, dim in zip(buffers, seq_dims, strict=True)
    ]


def _check(
    mesh: DeviceMesh, buffers: list[torch.Tensor], dims: list[int], left: set[torch.Tensor]
) -> None:
    if mesh.ndim != 1:
        raise MeshError(
            "context_parallel",
            found=f"{mesh}",
            why="a sequence is sharded along a single axis",
            hint='an axis of it: mesh["cp"], or several: mesh["dp", "cp"]._flatten()',
        )
    if len(buffers) != len(dims):
        raise PlacementError(
            "`seq_dims` must have the same number of elements as `buffers`: "
            f"{len(dims)} dims, {len(buffers)} buffers"
        )
    if any(not any(each is buffer for buffer in buffers) for each in left):
        raise PlacementError("`no_restore_buffers` must be a subset of `buffers`.")
    for buffer, dim in zip(buffers, dims, strict=True):
        if buffer.shape[dim] % mesh.size():
            raise PlacementError(
                f"a sequence of {buffer.shape[dim]} over {mesh.size()} ranks",
                found=f"a buffer of shape {tuple(buffer.shape)}, its sequence in dim {dim}",
                why="every rank holds an equal part of the sequence",
                hint="pad the sequence to a multiple of the number of ranks, or of twice that "
                "number",
            )


def _numbers(mesh: DeviceMesh, is_paired: bool, coord: int | None = None) -> list[int]:
    """Return the numbers of the pieces that a rank (this rank by default) holds, in order."""
    coord = mesh.get_local_rank() if coord is None else coord
    return [coord, 2 * mesh.size() - 1 - coord] if is_paired else [coord]


def _gathered(part: torch.Tensor, dim: int, mesh: DeviceMesh, is_paired: bool) -> torch.Tensor:
    """Gather the full sequence in order; its gradients are summed over ranks."""
    return _in_order(_pieces(part, dim, mesh), dim, is_paired)


def _gathered_with_flags(
    part: torch.Tensor, dim: int, mesh: DeviceMesh, is_paired: bool, flag: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather the full sequence, and a flag of every rank, sent as an additional position."""
    row = part.narrow(dim, 0, 1).detach()
    pieces = _pieces(torch.cat([part, torch.full_like(row, float(flag))], dim), dim, mesh)
    length = part.shape[dim]
    flags = torch.stack([each.narrow(dim, length, 1).detach().reshape(-1)[0] for each in pieces])
    return _in_order([each.narrow(dim, 0, length) for each in pieces], dim, is_paired), flags


def _pieces(part: torch.Tensor, dim: int, mesh: DeviceMesh) -> Sequence[torch.Tensor]:
    """Gather the parts of all ranks."""
    sharded = DTensor.from_local(part, mesh, [Shard(dim)])
    full = sharded.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
    return full.chunk(mesh.size(), dim)


def _in_order(parts: Sequence[torch.Tensor], dim: int, is_paired: bool) -> torch.Tensor:
    """Join the ranks' parts to the full sequence."""
    if is_paired:
        heads, tails = zip(*(each.chunk(2, dim) for each in parts), strict=True)
        parts = [*heads, *reversed(tails)]
    return torch.cat(list(parts), dim)


def _refuse_masks(flags: torch.Tensor, mask: torch.Tensor | None) -> None:
    """Raise on every rank if any of them has a mask, without waiting for an accelerator.

    A rank learns of another rank's mask only in a collective. If a rank raised alone, the others
    would wait.
    """
    if torch.compiler.is_compiling():
        return
    if mask is None and flags.device.type == "cuda":
        # Reading the flags would wait for the device, so the check runs there.
        assert_on_device(flags.sum() == 0, "a rank has a mask inside of context_parallel")
        return
    masked = [rank for rank, flag in enumerate(flags.tolist()) if flag]
    if masked:
        raise UnsupportedAttentionError(
            "attention with a mask inside of context_parallel",
            found=f"a mask on rank {', '.join(map(str, masked))} of the mesh's {len(flags)}",
            why="the mask may refer to local or to full queries and keys",
            hint="is_causal=True, or attention of DTensors outside of it",
        )


class _Attention(TorchFunctionMode):
    """Mode that runs attention of plain tensors on parts of a sequence."""

    def __init__(self, mesh: DeviceMesh, is_paired: bool) -> None:
        super().__init__()
        self._mesh = mesh
        self._is_paired = is_paired

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention or any(
            isinstance(each, DTensor) for each in (*args, *(kwargs or {}).values())
        ):
            return func(*args, **(kwargs or {}))
        return self._attend(*args, **(kwargs or {}))

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> torch.Tensor:
        options["dropout_p"] = dropout_p
        dim, mesh, is_paired = query.ndim - 2, self._mesh, self._is_paired
        is_masked = attn_mask is not None
        if _cp_options.rotate_method == "alltoall":
            ring = Ring(mesh, [_numbers(mesh, is_paired, each) for each in range(mesh.size())])
            out, flags = ring.attend(query, key, value, is_masked, is_causal=is_causal, **options)
            _refuse_masks(flags, attn_mask)
            return out
        key, flags = _gathered_with_flags(key, dim, mesh, is_paired, is_masked)
        _refuse_masks(flags, attn_mask)
        value = _gathered(value, dim, mesh, is_paired)
        with per_rank(mesh) if dropout_p else nullcontext():
            if not is_causal:
                return F.scaled_dot_product_attention(query, key, value, **options)
            numbers = _numbers(mesh, is_paired)
            parts = [
                _causal(part, number * part.shape[-2], key, value, **options)
                for number, part in zip(numbers, query.chunk(len(numbers), -2), strict=True)
            ]
            return torch.cat(parts, -2)


def _causal(
    query: torch.Tensor, before: int, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> torch.Tensor:
    """Attend with queries that follow the first `before` positions of their sequence."""
    end = before + query.shape[-2]
    key, value = key[..., :end, :], value[..., :end, :]
    if not before:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, **options)
    mask = query.new_ones(query.shape[-2], end, dtype=torch.bool).tril(before)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **options)
