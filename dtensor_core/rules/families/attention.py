"""Scaled dot-product attention: batch and heads may be cut, and queries where nothing is causal.

q [b, h, l, d], k [b, g, s, d], v [b, g, s, d] -> out [b, h, l, d], logsumexp [b, h, l], where g
divides h.
"""

from __future__ import annotations

from dtensor_core.rules.call import Call
from dtensor_core.rules.notation import broadcast, parse
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Operand, Rule
from dtensor_core.spec import Spec

_Q, _KV, _LSE, _MASK = "b (g r) l d!", "b g s! d!", "b (g r) l", "b (g r) l s!"
_FORWARD = f"{_Q}, {_KV}, {_KV}"
_BACKWARD = f"{_Q}, {_Q}, {_KV}, {_KV}, {_Q}, {_LSE}"


def _attention(call: Call, inputs: str, outputs: str) -> Rule:
    """Heads are (g r): r heads of the query share a head of key and value; mostly r is 1."""
    causal = bool(call.argument("is_causal", False))
    masked = isinstance(call.argument("attn_mask"), Spec)
    line = parse(f"{inputs}{', ' + _MASK if masked else ''} -> {outputs}")
    query, key = call.shapes[0], call.argument("key").shape
    heads, groups = query[1], key[1]
    sizes = {"b": query[0], "g": groups, "r": heads // groups, "l": query[2], "d": query[3]}
    sizes["s"] = key[2]
    single = heads == groups
    operands = [_without(operand, "r") if single else operand for operand in line.inputs]
    results = [_without(operand, "r") if single else operand for operand in line.outputs]
    if single:
        del sizes["r"]
    return Rule(
        inputs=tuple(
            broadcast(operand, shape, sizes)
            for operand, shape in zip(operands, call.shapes, strict=True)
        ),
        outputs=tuple(results),
        sizes=sizes,
        blocked=line.blocked | ({"l"} if causal else set()),
    )


def _without(operand: Operand, name: str) -> Operand:
    return tuple(tuple(each for each in dim if each != name) for dim in operand)


def _forward(call: Call) -> Rule:
    return _attention(call, _FORWARD, f"{_Q}, {_LSE}")


def _backward(call: Call) -> Rule:
    """Where queries are cut, the gradients of k and v are addends."""
    return _attention(call, _BACKWARD, f"{_Q}, {_KV}, {_KV}")


ROWS = {
    "_scaled_dot_product_flash_attention_for_cpu": Row(_forward, f"{_FORWARD} -> {_Q}, {_LSE}"),
    "_scaled_dot_product_flash_attention_for_cpu_backward": Row(
        _backward, f"{_BACKWARD} -> {_Q}, {_KV}, {_KV}"
    ),
}
