"""Samples of an image at the points of a grid, affine grids, and their gradients."""

from __future__ import annotations

from dataclasses import replace

from dtensor_core.operators.kernels.local_operator import zeros_if_empty
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.row import Row, notation
from dtensor_core.operators.rules.sharding_rule import ShardingRule


def _affine_grid(call: Call) -> ShardingRule:
    """One grid per sample."""
    out = call.outputs[0].shape
    return ShardingRule(
        inputs=((("n",), (), ()),),
        outputs=((("n",), *((),) * (len(out) - 1)),),
        sizes={"n": out[0]},
        terms=((0,),),
        algebra="linear",
        local=lambda op, inputs, outputs: (
            lambda theta, size, *rest: op(theta, [theta.shape[0], *size[1:]], *rest)
        ),
    )


def _sampled(text: str) -> Row:
    """Samples of an image at the points of a grid; linear in the image, or in the gradient."""
    row = notation(text)

    def build(call: Call) -> ShardingRule:
        rule = row.build(call)
        assert rule is not None
        outputs = rule.outputs[-len(call.outputs) :]  # the grid's is made even if unwanted
        return replace(rule, outputs=outputs, terms=((0,),), local=zeros_if_empty)

    return replace(row, build=build, terms=((0,),))


_SAMPLERS = {
    "grid_sampler_2d": "n c 1 1, n p q 1 -> n c p q",
    "grid_sampler_3d": "n c 1 1 1, n p q r 1 -> n c p q r",
    "grid_sampler_2d_backward": "n c p q, n c 1 1, n p q 1 -> n c 1 1, n p q 1",
    "grid_sampler_3d_backward": "n c p q r, n c 1 1 1, n p q r 1 -> n c 1 1 1, n p q r 1",
}


ROWS = {name: _sampled(text) for name, text in _SAMPLERS.items()}
ROWS["affine_grid_generator"] = Row(_affine_grid, "n 1 1 -> n ..", "linear")
