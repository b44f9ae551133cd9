"""Embedding look-ups: a cut of the vocabulary gives addends, since one rank has each row.

The rank looks up what it holds and answers zeros for the rest; the gradient of a table cut by
vocabulary is summed from the rows that the rank holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtensor_core.rules.call import Call
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Rule
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending

aten = torch.ops.aten


def _embedding(call: Call) -> Rule:
    """Weight [v, e], indices [i..] -> [i.., e]; linear in the weight."""
    indices = tuple((f"i{dim}",) for dim in range(call.specs[1].ndim))
    sizes = {f"i{dim}": size for dim, size in enumerate(call.specs[1].shape)}
    vocabulary, width = call.specs[0].shape
    return Rule(
        inputs=((("v",), ("e",)), indices),
        outputs=((*indices, ("e",)),),
        sizes={**sizes, "v": vocabulary, "e": width},
        terms=((0,),),
        algebra="linear",
        local=_local_lookup,
    )


def _local_lookup(
    op: Callable[..., Any], inputs: Sequence[Spec], outputs: Sequence[Spec | None]
) -> Callable[..., Any]:
    held = inputs[0].held(0)
    if sum(piece.size for piece in held) == inputs[0].shape[0]:
        return op
    (piece,) = held

    def lookup(
        weight: torch.Tensor, indices: torch.Tensor, padding_idx: int = -1, *unused: Any
    ) -> torch.Tensor:
        elsewhere = (indices < piece.offset) | (indices >= piece.offset + piece.size)
        if piece.size == 0:
            nothing = weight.new_zeros((*indices.shape, weight.shape[1]))
            return depending(nothing, weight, indices)
        rows = aten.embedding.default(
            weight, (indices - piece.offset).masked_fill_(elsewhere, 0), -1
        )
        return rows.masked_fill_(elsewhere.unsqueeze(-1), 0)

    return lookup


def _embedding_backward(call: Call) -> Rule:
    """Grad [i.., e], indices [i..] -> [v, e]; linear in the gradient."""
    indices = tuple((f"i{dim}",) for dim in range(call.specs[1].ndim))
    sizes = {f"i{dim}": size for dim, size in enumerate(call.specs[1].shape)}
    indices_names = tuple(sizes)
    vocabulary, width = call.outputs[0].shape
    return Rule(
        inputs=((*indices, ("e",)), indices),
        outputs=((("v",), ("e",)),),
        sizes={**sizes, "v": vocabulary, "e": width},
        # Frequencies are those of all indices.
        blocked=frozenset({"v", *(indices_names if call.argument("scale_grad_by_freq") else ())}),
        terms=((0,),),
        algebra="linear",
    )


ROWS = {
    "embedding": Row(_embedding, "v e, i.. -> i.. e"),
    "embedding_dense_backward": Row(_embedding_backward, "i.. e, i.. -> v! e"),
}
