"""Scaled dot-product attention: every dimension but the features may be sharded.

q [b, h, l, d], k [b, g, s, d], v [b, g, s, e] -> out [b, h, l, e], logsumexp [b, h, l], where g
divides h: r heads of the query share one head of key and value, and heads are (g r). The name of a
kernel's argument identifies its dimensions, so that the same rule serves all devices' kernels.
Other results (seeds, debug masks) are read by the operator's own backward only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dtensor_core.operators.attention.local import drawn_apart, part_of
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.notation import broadcast, parse
from dtensor_core.operators.rules.row import Row, same_row
from dtensor_core.operators.rules.rule_builders import replicated_rule
from dtensor_core.operators.rules.sharding_rule import Candidate, Dim, Operand, ShardingRule
from dtensor_core.placement import Replicate, Shard
from dtensor_core.redistribute.partial_combine import Merge
from dtensor_core.spec import Spec

_QUERY, _KEY, _VALUE = "b (g r) l d", "b g s d", "b g s e"
_OUT, _LOGSUMEXP, _MASK = "b (g r) l e", "b (g r) l", "b (g r) l s"
_OPERANDS = {
    "query": _QUERY,
    "key": _KEY,
    "value": _VALUE,
    **dict.fromkeys(("out", "grad_out", "grad_out_"), _OUT),
    "logsumexp": _LOGSUMEXP,
    **dict.fromkeys(("attn_mask", "attn_bias", "bias"), _MASK),
}
_FORWARD, _BACKWARD = ("out", "logsumexp"), ("query", "key", "value", "attn_bias")
# Random state that a kernel uses again in its backward.
_SEEDS = frozenset(("rng_state", "unused", "philox_seed", "philox_offset"))
_TAKES_MASK = "_scaled_dot_product_flash_attention_for_cpu"
_PADDING = 32  # the memory-efficient kernels pad logsumexp to a multiple of it


def _attention(call: Call, results: Sequence[str], *, heads_last: bool = False) -> ShardingRule:
    """Build the rule of a kernel.

    Kernels with `heads_last` take [b, l, h, d], and the lengths of sequences as numbers.
    """
    names, name = call.names, call.op._schema.name.removeprefix("aten::")
    query, key, value = (call.argument(each).shape for each in _BACKWARD[:3])
    unknown = set(names) - _OPERANDS.keys() - _SEEDS  # sequence offsets, scales
    if len(query) != 4 or unknown or call.argument("return_debug_mask"):
        return replicated_rule(call)
    head, row = (2, 1) if heads_last else (1, 2)
    sizes = {"b": query[0], "g": key[head], "r": query[head] // key[head], "l": query[row]}
    sizes |= {"s": key[row], "d": query[3], "e": value[3]}
    if "efficient" in name and query[row] % _PADDING == 0:
        sizes |= {"l": query[row] // _PADDING, "w": _PADDING}
    causal = bool(call.argument("is_causal") or call.argument("custom_mask_type"))
    masked = any(_OPERANDS.get(each) is _MASK for each in names)
    on_cpu = name.startswith(_TAKES_MASK) and not (causal and masked)
    drops = results is _FORWARD and call.argument("dropout_p", 0.0) > 0
    unsharded_rows = heads_last or (causal and not on_cpu)
    unsharded_rows |= "efficient" in name and "w" not in sizes
    # Partial results over a rank's keys are weighted by their logsumexp.
    weighs = call.argument("compute_log_sumexp", True) and "overrideable" not in name
    unsharded_keys = heads_last or drops or not weighs or not (on_cpu or not (causal or masked))
    given = zip(names, call.shapes, strict=True)
    made = zip(results, (meta.shape for meta in call.outputs), strict=False)
    local = None if heads_last else part_of(names.index("query"), causal, results is _FORWARD)
    if results is _FORWARD and not unsharded_keys:
        extra, unsharded_keys = tuple(_with_sharded_keys(call)), True
    else:
        extra = ()
    return ShardingRule(
        inputs=tuple(_operand(name, shape, sizes, heads_last) for name, shape in given),
        outputs=(
            *(_operand(name, shape, sizes, heads_last) for name, shape in made),
            *(((),) * len(meta.shape) for meta in call.outputs[len(results) :]),
        ),
        sizes=sizes,
        blocked=frozenset("dew" + "l" * unsharded_rows + "s" * unsharded_keys),
        settled=frozenset(range(0 if results is _FORWARD else len(results), len(call.outputs))),
        local=drawn_apart if drops else local,
        extra=extra,
    )


def _with_sharded_keys(call: Call) -> Iterator[Candidate]:
    """Yield candidates with sharded keys and values: results are summed, logarithms gathered."""
    query, key = call.argument("query"), call.argument("key")
    inputs = tuple(
        Shard(2)
        if name in ("key", "value")
        else Shard(spec.ndim - 1)
        if _OPERANDS.get(name) is _MASK and spec.shape[-1] == key.shape[2]
        else Replicate()
        for name, spec in zip(call.names, call.specs, strict=True)
    )
    for axis, placement in enumerate(key.placements):
        ranks = key.mesh_shape[axis]
        if placement is Shard(2) and ranks > 1:
            # Per query: a float32 of every rank, and an all-reduce, which sends results twice.
            of_query = 4 * ranks + 2 * query.shape[3] * query.dtype.itemsize
            # `Merge.seconds` multiplies by ranks - 1 and by the features, so both are divided out.
            size = query.shape[2] * of_query // ((ranks - 1) * query.shape[3])
            merge = Merge((axis,), (2,), size, None)
            yield Candidate(inputs, (Replicate(),) * len(call.outputs), exchange=merge)


def _operand(
    name: str, shape: Sequence[int], sizes: Mapping[str, int], heads_last: bool
) -> Operand:
    """Return the operand of an argument or result of this name and shape."""
    if name in _SEEDS:
        return ((),) * len(shape)
    (operand,) = parse(f"{_OPERANDS[name]} -> ").inputs
    operand = tuple(_factors(dim, sizes) for dim in operand)
    if name == "logsumexp":  # with a last dim of 1, or empty because it was not requested
        operand = (*operand, *((),) * (len(shape) - 3))
        return tuple(dim if size else () for dim, size in zip(operand, shape, strict=True))
    if heads_last and _OPERANDS[name] is not _MASK:
        operand = (operand[0], operand[2], operand[1], operand[3])
    return broadcast(operand, shape, dict(sizes))


def _factors(dim: Dim, sizes: Mapping[str, int]) -> Dim:
    """Return the factors of a dimension in this call; usually every head has its own key."""
    named = tuple(name for name in dim if name != "r" or sizes["r"] > 1)
    return ("l", "w") if named == ("l",) and "w" in sizes else named


def _fused_layer(call: Call) -> ShardingRule:
    """Build the rule of a fused inference layer: sharded samples, replicated weights."""
    if isinstance(call.argument("mask"), Spec):
        return replicated_rule(call)
    of_samples = ("src", "query", "key", "value")
    return ShardingRule(
        inputs=tuple(
            (("b",) if name in of_samples else (), *((),) * (spec.ndim - 1))
            for name, spec in zip(call.names, call.specs, strict=True)
        ),
        outputs=tuple((("b",), *((),) * (len(meta.shape) - 1)) for meta in call.outputs),
        sizes={"b": call.specs[0].shape[0]},
    )


def _row(results: Sequence[str], *, heads_last: bool = False) -> Row:
    text = f"{_QUERY}, {_KEY}, {_VALUE}, {_MASK} -> "
    text += ", ".join(_OPERANDS[name] for name in results)

    def build(call: Call) -> ShardingRule:
        return _attention(call, results, heads_last=heads_last)

    return Row(build, text)


_KERNELS = (
    "flash_attention_for_cpu flash_attention efficient_attention cudnn_attention "
    "fused_attention_overrideable"
)
ROWS = {f"_scaled_dot_product_{name}": _row(_FORWARD) for name in _KERNELS.split()}
ROWS |= {f"_scaled_dot_product_{name}_backward": _row(_BACKWARD) for name in _KERNELS.split()}
ROWS |= {
    f"_{name}_attention_{way}": _row(results, heads_last=True)
    for name in ("flash", "efficient")
    for way, results in (("forward", _FORWARD), ("backward", _BACKWARD))
}
ROWS |= same_row(
    "_transformer_encoder_layer_fwd _native_multi_head_attention",
    Row(_fused_layer, "b l! d!, weights -> b l! d!"),
)
