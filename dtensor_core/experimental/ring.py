"""Ring attention: keys and values rotate from rank to rank; each rank sees one block at a time.

The results of a rank's queries for the blocks are combined by a running maximum and a running sum
of exponentials (Liu, Zaharia and Abbeel, Ring Attention with Blockwise Transformers). A block of
scores is recomputed in the backward pass, so that no rank keeps more than one. Called by
`context_parallel`.

Shapes: queries [..., L, E], keys and values [..., S, E] of a rank, with batches B and heads in
front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dtensor_core.mesh import DeviceMesh
from dtensor_core.random import per_rank
from dtensor_core.redistribute.rotate import rotated

_OPERATOR = "scaled_dot_product_attention"

# For each query the weighted sum of values, the largest score, and the sum of exponentials.
AttentionState = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class _Rotation(torch.autograd.Function):
    """Receive the part of the preceding rank; gradients travel the other way."""

    @staticmethod
    def forward(ctx: Any, flat: torch.Tensor, mesh: DeviceMesh, steps: int) -> torch.Tensor:
        ctx.mesh, ctx.steps = mesh, steps
        return rotated(flat, mesh, steps, _OPERATOR)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        back = _Rotation.apply(grads[0].contiguous(), ctx.mesh, -ctx.steps)
        return back, None, None


@dataclass(frozen=True, slots=True)
class Ring:
    """The ranks of a mesh, and the positions in the sequence that each holds.

    `held` has the numbers of the pieces of every rank, all of the same length.
    """

    mesh: DeviceMesh
    held: Sequence[Sequence[int]]

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        flag: bool,
        *,
        is_causal: bool = False,
        dropout_p: float = 0.0,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's part of the attention of the full sequence, and all ranks' flags.

        A flag travels with the keys and values of its rank.
        """
        mesh, me = self.mesh, self.mesh.get_local_rank()
        rows = self._positions(me, query.shape[-2])
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        wide = torch.promote_types(query.dtype, torch.float32)
        state: AttentionState = (
            query.new_zeros((*query.shape[:-1], value.shape[-1]), dtype=wide),
            query.new_full((*query.shape[:-1], 1), -math.inf, dtype=wide),
            query.new_zeros((*query.shape[:-1], 1), dtype=wide),
        )
        flat = torch.cat([key.reshape(-1), value.reshape(-1), key.new_full((1,), float(flag))])
        flags = [flat] * mesh.size()
        for step in range(mesh.size()):
            whose = (me - step) % mesh.size()
            if step:
                flat = _Rotation.apply(flat, mesh, 1)
            k, v, its_flag = flat.split([key.numel(), value.numel(), 1])
            flags[whose] = its_flag.detach()
            columns = self._positions(whose, key.shape[-2])
            # A fully masked block is not skipped, since its rotations have to be undone in
            # backward.
            hidden = columns > rows.unsqueeze(-1) if is_causal else None
            hidden = hidden.to(query.device) if hidden is not None and hidden.any() else None
            blocks = _with_heads_of(query, k.view(key.shape), v.view(value.shape), enable_gqa)
            rest = (hidden, scale, dropout_p)
            with per_rank(mesh) if dropout_p else nullcontext():
                state = checkpoint(_block, query, *blocks, *state, *rest, use_reentrant=False)
        total, _, exponentials = state
        return (total / exponentials).to(query.dtype), torch.cat(flags)

    def _positions(self, coord: int, length: int) -> torch.Tensor:
        """Return the positions in the sequence of a rank's local part."""
        pieces = self.held[coord]
        each = length // len(pieces)
        return torch.cat([torch.arange(each) + number * each for number in pieces])


def _with_heads_of(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Repeat each head of keys and values for the query heads that share it."""
    if not enable_gqa:
        return key, value
    times = query.shape[-3] // key.shape[-3]
    return key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)


def _block(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    total: torch.Tensor,
    largest: torch.Tensor,
    exponentials: torch.Tensor,
    hidden: torch.Tensor | None,
    scale: float,
    dropout_p: float,
) -> AttentionState:
    """Return the state of queries after another block of keys and values."""
    wide = total.dtype
    scores = (query.to(wide) * scale) @ key.to(wide).transpose(-2, -1)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    with torch.no_grad():  # the result does not depend on the value subtracted
        now = torch.maximum(largest, scores.amax(-1, keepdim=True))
        # A query that has seen no key yet has -inf in both places, whose difference would be nan.
        shift = now.masked_fill(now == -math.inf, 0.0)
        before = (largest - shift).exp()
    weights = (scores - shift).exp()
    exponentials = exponentials * before + weights.sum(-1, keepdim=True)
    total = total * before + F.dropout(weights, dropout_p) @ value.to(wide)
    return total, now, exponentials
