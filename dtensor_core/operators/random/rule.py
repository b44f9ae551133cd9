"""Random operators: every layout yields the numbers that a single device would draw.

Operators whose number of draws depends on values of their argument run on replicated arguments.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from dtensor_core.operators.kernels.local_operator import LocalMaker
from dtensor_core.operators.random.local import (
    SAMPLERS,
    comparing,
    dropout,
    normal,
    rrelu,
    sampling,
    writes_first,
)
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.elementwise import OPAQUE
from dtensor_core.operators.rules.row import Row, same_row
from dtensor_core.operators.rules.rule_builders import elementwise_rule, replicated_rule
from dtensor_core.operators.rules.sharding_rule import Candidate, ShardingRule
from dtensor_core.placement import Partial, Replicate

aten = torch.ops.aten


def _elementwise(local: LocalMaker, text: str = "elementwise, drawn for the full tensor") -> Row:
    """Make an elementwise row; a Partial argument stays if only its shape is used."""

    def build(call: Call) -> ShardingRule:
        like = call.op._schema.name.endswith("_like") and len(call.specs) == 1
        partials = dict.fromkeys(p for p in call.specs[0].placements if isinstance(p, Partial))
        extra = tuple(Candidate((p,), (Replicate(),)) for p in partials) if like else ()
        return replace(elementwise_rule(call), extra=extra, local=local)

    return Row(build, text)


def _multinomial(call: Call) -> ShardingRule:
    """Rows of weights, [rows, classes] -> [rows, samples]; a single row is not sharded."""
    classes, samples = ("classes",), ("samples",)
    rows = (("rows",),) * (call.specs[0].ndim - 1)
    sizes = {"classes": call.specs[0].shape[-1], "samples": call.outputs[0].shape[-1]}
    if rows:
        sizes["rows"] = call.specs[0].shape[0]
    return ShardingRule(
        inputs=((*rows, classes),),
        outputs=((*rows, samples),),
        sizes=sizes,
        blocked=frozenset(("classes", "samples")),
        local=comparing(aten.multinomial.default),
    )


def _rrelu(call: Call) -> ShardingRule:
    """rrelu_with_noise(x, noise, ...): drawn where x is not positive; noise keeps its layout."""
    if writes_first(call.op):  # and written back from there
        return replicated_rule(call)
    present = dict.fromkeys(call.specs[1].placements)
    return ShardingRule(
        inputs=((), ()),
        outputs=((),),
        sizes={},
        extra=tuple(Candidate((Replicate(), p), (p,)) for p in present if not p.is_partial()),
        offers_replicated=False,
        local=rrelu,
    )


ROWS = {name: _elementwise(sampling(sampler)) for name, sampler in SAMPLERS.items()}
ROWS |= same_row(
    "normal.Tensor_Tensor normal.Tensor_float normal.float_Tensor", _elementwise(normal)
)
ROWS |= {
    "bernoulli": _elementwise(comparing(aten.bernoulli.default)),
    "bernoulli.Tensor": _elementwise(comparing(aten.bernoulli.Tensor)),
    "multinomial": Row(_multinomial, "rows, drawn for the full tensor"),
    "native_dropout": _elementwise(dropout, "elementwise, mask drawn for the full tensor"),
    "rrelu_with_noise": Row(_rrelu, "replicated, the noise with its layout"),
}
ROWS |= same_row("rrelu_with_noise_backward _standard_gamma_grad", OPAQUE)
ROWS |= same_row(
    "poisson binomial _standard_gamma _sample_dirichlet",
    Row(replicated_rule, "replicated: values decide how many numbers are drawn"),
)
