"""Scaled dot-product attention: batch and heads may be cut, and queries where nothing is causal.

q [b, h, l, d], k [b, h, s, d], v [b, h, s, d] -> out [b, h, l, d], logsumexp [b, h, l]
"""

from __future__ import annotations

from dtensor_core.rules.call import Call
from dtensor_core.rules.notation import bind, broadcast, parse
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Rule
from dtensor_core.spec import Spec

_Q, _KV, _LSE, _MASK = "b h l d!", "b h s! d!", "b h l", "b h l s!"
_FORWARD = f"{_Q}, {_KV}, {_KV}"
_BACKWARD = f"{_Q}, {_Q}, {_KV}, {_KV}, {_Q}, {_LSE}"


def _attention(call: Call, inputs: str, outputs: str) -> Rule:
    causal = bool(call.argument("is_causal", False))
    masked = isinstance(call.argument("attn_mask"), Spec)
    line = parse(f"{inputs}{', ' + _MASK if masked else ''} -> {outputs}")
    sizes = bind(line, call.shapes)
    return Rule(
        inputs=tuple(
            broadcast(operand, shape, sizes)
            for operand, shape in zip(line.inputs, call.shapes, strict=True)
        ),
        outputs=line.outputs,
        sizes=sizes,
        blocked=line.blocked | ({"l"} if causal else set()),
    )


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
