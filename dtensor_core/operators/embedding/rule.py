"""Embedding look-ups: a table sharded by vocabulary gives partial sums, with each row on one rank.

A rank looks up the rows that it holds and returns zeros for the others; the gradient of a table
sharded by vocabulary is summed over the rows that the rank holds.
"""

from __future__ import annotations

from dtensor_core.operators.embedding.local import looking_up, renormalizing
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.sharding_rule import Operand, ShardingRule


def _indices(call: Call) -> tuple[Operand, dict[str, int]]:
    """Return the operand of the indices, and the sizes of its factors."""
    sizes = {f"i{dim}": size for dim, size in enumerate(call.specs[1].shape)}
    return tuple((name,) for name in sizes), sizes


def _embedding(call: Call) -> ShardingRule:
    """Embed indices [i..] in weight [v, e] as [i.., e]; linear in the weight."""
    indices, sizes = _indices(call)
    vocabulary, width = call.specs[0].shape
    return ShardingRule(
        inputs=((("v",), ("e",)), indices),
        outputs=((*indices, ("e",)),),
        sizes={**sizes, "v": vocabulary, "e": width},
        terms=((0,),),
        algebra="structural",
        local=looking_up,
    )


def _embedding_backward(call: Call) -> ShardingRule:
    """Map grad [i.., e] and indices [i..] to [v, e]; linear in the gradient."""
    indices, sizes = _indices(call)
    vocabulary, width = call.outputs[0].shape
    return ShardingRule(
        inputs=((*indices, ("e",)), indices),
        outputs=((("v",), ("e",)),),
        sizes={**sizes, "v": vocabulary, "e": width},
        # Frequencies count all indices.
        blocked=frozenset({"v", *(sizes if call.argument("scale_grad_by_freq") else ())}),
        terms=((0,),),
        algebra="linear",
    )


def _renorm(call: Call) -> ShardingRule:
    """Shorten the indexed rows of weight [v, e] whose norm is too large."""
    replicated = ((),) * call.specs[1].ndim
    vocabulary, width = call.specs[0].shape
    table = (("v",), ("e",))
    sizes = {"v": vocabulary, "e": width}
    return ShardingRule((table, replicated), (table,), sizes, frozenset("e"), local=renormalizing)


ROWS = {
    "embedding": Row(_embedding, "v e, i.. -> i.. e", "structural"),
    "embedding_renorm": Row(_renorm, "v e!, i.. -> v e!"),
    "embedding_dense_backward": Row(_embedding_backward, "i.. e, i.. -> v! e", "linear"),
}
