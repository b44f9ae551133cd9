"""Bags of embeddings (`embedding_bag`): sums, means and maxima of the rows that each bag names.

Weight [v, e], indices [i], offsets [b], weights of the indices [i] -> [b, e]. Each index adds its
row to one bag, so a rank that holds a shard of the indices or of the rows computes partial sums.
All ranks know the offsets. A maximum needs all rows. The other results are for the operator's
backward, which recomputes them from the offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dtensor_core.operators.embedding_bag.local import (
    Share,
    add_up_gradients,
    add_up_rows,
    gradients_of_weights,
)
from dtensor_core.operators.kernels.local_operator import Local
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.sharding_rule import Operand, ShardingRule
from dtensor_core.spec import Spec

_MEAN, _MAX = 1, 2
_OPERANDS: dict[str, Operand] = {
    "weight": (("v",), ("e",)),
    "grad": ((), ("e",)),
    "indices": (("i",),),
    "per_sample_weights": (("i",),),
}


def _rule(call: Call, output: Operand, maker: Callable[[Share], Local]) -> ShardingRule:
    """Build a rule with operands by name; `maker` makes its operator for shards.

    Arguments without an operand are replicated, as are all results but the first.
    """
    names, weight, mode = call.names, call.argument("weight"), call.argument("mode")
    at, bags = names.index("indices"), call.specs[0].shape[0]
    if len(call.outputs) > 1:
        bags = call.outputs[0].shape[0]
    vocabulary = weight.shape[0] if isinstance(weight, Spec) else call.argument("num_weights")
    sizes = {"v": vocabulary, "i": call.specs[at].shape[0], "e": call.specs[0].shape[1]}
    padding = int(call.argument("padding_idx"))
    how = mode == _MEAN, call.argument("offsets").shape[0] > bags, padding
    # The number of counted rows depends on all indices.
    counts = mode == _MEAN and padding >= 0
    blocked = {"i", "v"} if mode == _MAX else {"i"} if counts else set[str]()
    if call.argument("scale_grad_by_freq") and not isinstance(weight, Spec):
        blocked |= {"i"}
    of_max = ((), ("e",)) if mode == _MAX else None

    def operand(name: str, ndim: int) -> Operand:
        known = of_max if name == "maximum_indices" else _OPERANDS.get(name)
        return known or ((),) * ndim

    def local(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        table = inputs[names.index("weight")] if isinstance(weight, Spec) else None
        share = Share(op, how, inputs[at], table, outputs[1:])
        return maker(share) if share.is_part else op

    others = zip(("", "", "maximum_indices"), call.outputs[1:], strict=False)
    return ShardingRule(
        inputs=tuple(operand(n, spec.ndim) for n, spec in zip(names, call.specs, strict=True)),
        outputs=(output, *(operand(name, len(meta.shape)) for name, meta in others)),
        sizes=sizes,
        blocked=frozenset(blocked if isinstance(weight, Spec) else {*blocked, "v"}),
        settled=frozenset((1, 2, 3)),
        local=local,
    )


def _row(output: Operand, maker: Callable[[Share], Local], text: str) -> Row:
    def build(call: Call) -> ShardingRule:
        return _rule(call, output, maker)

    return Row(build, text)


_FORWARD = _row(((), ("e",)), add_up_rows, "v e, i, b, i -> b! e")
ROWS = {
    "_embedding_bag": _FORWARD,
    "_embedding_bag_forward_only": _FORWARD,
    "_embedding_bag_backward": _row(
        (("v",), ("e",)), add_up_gradients, "b! e, i, b, .., i -> v! e"
    ),
    "_embedding_bag_per_sample_weights_backward": _row(
        (("i",),), gradients_of_weights, "b! e, v e, i, b -> i"
    ),
}
