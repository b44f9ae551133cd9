"""Scaled dot-product attention: batch, heads and queries may be cut, the rest must be whole.

q [b, h, l, d], k [b, g, s, d], v [b, g, s, e] -> out [b, h, l, e], logsumexp [b, h, l], where g
divides h: r heads of the query share one of key and value, and heads are (g r). What an operand of
a kernel is its name tells, so that one rule serves the kernels of all devices. What some return
besides, seeds and masks for debugging, is read by their own backward only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dtensor_core.draws import apart
from dtensor_core.local.operator import Local, LocalMaker, called_with
from dtensor_core.placement import sharded_dim
from dtensor_core.rules.call import Call
from dtensor_core.rules.notation import broadcast, parse
from dtensor_core.rules.row import Row, whole_rule
from dtensor_core.rules.rule import Dim, Operand, Rule
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
# What a kernel draws from again in its backward.
_SEEDS = frozenset(("rng_state", "unused", "philox_seed", "philox_offset"))
_TAKES_MASK = "_scaled_dot_product_flash_attention_for_cpu"
_PADDING = 32  # logsumexp of the memory-efficient kernels is as long as a multiple of it


def _attention(call: Call, results: Sequence[str], *, heads_last: bool = False) -> Rule:
    """Kernels with `heads_last` take [b, l, h, d], and the lengths of sequences as numbers."""
    names, name = call.names, call.op._schema.name.removeprefix("aten::")
    query, key, value = (call.argument(each).shape for each in _BACKWARD[:3])
    unknown = set(names) - _OPERANDS.keys() - _SEEDS  # where sequences begin, scales
    if len(query) != 4 or unknown or call.argument("return_debug_mask"):
        return whole_rule(call)
    head, row = (2, 1) if heads_last else (1, 2)
    sizes = {"b": query[0], "g": key[head], "r": query[head] // key[head], "l": query[row]}
    sizes |= {"s": key[row], "d": query[3], "e": value[3]}
    if "efficient" in name and query[row] % _PADDING == 0:
        sizes |= {"l": query[row] // _PADDING, "w": _PADDING}
    causal = bool(call.argument("is_causal") or call.argument("custom_mask_type"))
    told_apart = name.startswith(_TAKES_MASK) and "attn_mask" not in names
    uncut_rows = (
        heads_last or (causal and not told_apart) or ("efficient" in name and "w" not in sizes)
    )
    given = zip(names, call.shapes, strict=True)
    made = zip(results, (meta.shape for meta in call.outputs), strict=False)
    local: LocalMaker | None = None
    if results is _FORWARD and call.argument("dropout_p", 0.0):
        local = _drawn_apart
    elif causal and not uncut_rows:
        local = _causal_from(names.index("query"))
    return Rule(
        inputs=tuple(_operand(name, shape, sizes, heads_last) for name, shape in given),
        outputs=(
            *(_operand(name, shape, sizes, heads_last) for name, shape in made),
            *(((),) * len(meta.shape) for meta in call.outputs[len(results) :]),
        ),
        sizes=sizes,
        blocked=frozenset(("d", "e", "s", "w", *("l" if uncut_rows else ""))),
        settled=frozenset(range(len(results), len(call.outputs))),
        local=local,
    )


def _operand(
    name: str, shape: Sequence[int], sizes: Mapping[str, int], heads_last: bool
) -> Operand:
    """What an argument or result of this name and shape is."""
    if name in _SEEDS:
        return ((),) * len(shape)
    (operand,) = parse(f"{_OPERANDS[name]} -> ").inputs
    operand = tuple(_factors(dim, sizes) for dim in operand)
    if name == "logsumexp":  # with a last dim of 1, or none asked for
        operand = (*operand, *((),) * (len(shape) - 3))
        return tuple(dim if size else () for dim, size in zip(operand, shape, strict=True))
    if heads_last and _OPERANDS[name] is not _MASK:
        operand = (operand[0], operand[2], operand[1], operand[3])
    return broadcast(operand, shape, dict(sizes))


def _factors(dim: Dim, sizes: Mapping[str, int]) -> Dim:
    """The factors of a dimension that this call has: mostly every head has a key of its own."""
    named = tuple(name for name in dim if name != "r" or sizes["r"] > 1)
    return ("l", "w") if named == ("l",) and "w" in sizes else named


def _drawn_apart(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Kernels draw by the place in the local tensor: other parts draw from another state."""
    query = inputs[0]
    assert query.coords is not None
    cut = [axis for axis, each in enumerate(query.placements) if sharded_dim(each) is not None]
    if not cut or 0 in query.local_shape:
        return op
    place = 0
    for axis in cut:
        place = place * query.mesh_shape[axis] + query.coords[axis]

    def run(query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if type(query) is not torch.Tensor:  # without data nothing is drawn
            return op(query, *args, **kwargs)
        with apart(query.device.type, place):
            return op(query, *args, **kwargs)

    return run


def _causal_from(number: int) -> LocalMaker:
    """Causality as a mask, where a rank holds a part of the queries, argument `number`."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        queries, keys = inputs[number], inputs[number + 1]
        held = queries.held(2)
        if queries.local_shape[2] == queries.shape[2] or 0 in queries.local_shape:
            return op

        def run(*args: Any, **kwargs: Any) -> Any:
            like = args[number]
            columns = torch.arange(keys.shape[2], device=like.device)
            rows = torch.cat(
                [columns.new_tensor(range(at.offset, at.offset + at.size)) for at in held]
            )
            mask = like.new_zeros(len(rows), len(columns))
            mask.masked_fill_(columns > rows[:, None], -torch.inf)
            return called_with(op, args, kwargs, is_causal=False, attn_mask=mask)

        return run

    return maker


def _row(results: Sequence[str], *, heads_last: bool = False) -> Row:
    text = f"{_QUERY}, {_KEY}, {_VALUE}, {_MASK} -> "
    text += ", ".join(_OPERANDS[name] for name in results)

    def build(call: Call) -> Rule:
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
