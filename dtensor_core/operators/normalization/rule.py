"""Normalizations: every dimension may be sharded.

Elements that are normalized together share a mean and a deviation. Where they are sharded, a single
all-gather shares each rank's two statistics of every row, group or channel, and in the backward
pass two sums. Means and deviations are combined as by Chan, Golub and LeVeque (1979). Gradients of
weight and bias are partial sums along sharded dimensions that they are broadcast over, except in a
batch norm, whose ranks know both sums.

    layer, rms    x [a.., n..], weight [n..]                    -> y, mean and rstd [a.., 1..]
    group         x [n, (g r), s..], weight [(g r)]             -> y, mean and rstd [n, g]
    batch         x [n, c, s..], weight and running stats [c]   -> y, mean and rstd [c]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dtensor_core.operators.normalization.local import (
    Dims,
    batch_norm_gradients,
    batch_norm_shared,
    group_norm_gradients,
    group_norm_shared,
    known_moments,
    layer_norm_gradients,
    layer_norm_shared,
    sharing,
    sharing_groups,
)
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.operands import factor_sizes, full_operand
from dtensor_core.operators.rules.row import Row, same_row
from dtensor_core.operators.rules.sharding_rule import Candidate, Operand, ShardingRule
from dtensor_core.operators.rules.summary_merge import sharded_axes
from dtensor_core.placement import Replicate, Shard
from dtensor_core.redistribute.partial_combine import Merge


def _kept(results: Sequence[Any], wanted: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(each for each, is_wanted in zip(results, wanted, strict=True) if is_wanted)


# Layer and rms norm: normalization over the last dims.


def _layer(call: Call) -> tuple[Operand, Operand, Dims]:
    """Return operands of the input and of moments, and the normalized dims."""
    ndim = call.argument("input").ndim
    dims = tuple(range(ndim - len(call.argument("normalized_shape")), ndim))
    full = full_operand(call.argument("input").shape)
    return full, tuple(() if dim in dims else names for dim, names in enumerate(full)), dims


def _layer_norm(call: Call) -> ShardingRule:
    """x, weight?, bias? -> y, mean, rstd; rms: x, weight? -> y, rstd."""
    full, moments, dims = _layer(call)
    return ShardingRule(
        inputs=(full, *((full[dims[0] :],) * (len(call.specs) - 1))),
        outputs=(full, *((moments,) * (len(call.outputs) - 1))),
        sizes=factor_sizes(call.specs[0].shape),
        settled=frozenset((1, 2)),
        local=sharing(0, dims, layer_norm_shared(dims)),
    )


def _layer_norm_backward(call: Call) -> ShardingRule:
    """grad, x, mean?, rstd, weight?, bias? -> grad_x?, grad_weight?, grad_bias?."""
    full, moments, dims = _layer(call)
    operands = {"grad_out": full, "input": full, "mean": moments, "rstd": moments}
    mask = call.argument("output_mask")
    return ShardingRule(
        inputs=tuple(operands.get(name, full[dims[0] :]) for name in call.names),
        outputs=_kept((full, full[dims[0] :], full[dims[0] :])[: len(mask)], mask),
        sizes=factor_sizes(call.specs[1].shape),
        local=sharing(1, dims, layer_norm_gradients(dims)),
    )


# Group norm: normalization over the channels of a group and all positions.


def _channels(call: Call) -> tuple[Operand, dict[str, int]]:
    """Return the operand of the input, and its sizes."""
    shape, groups = call.argument("input").shape, call.argument("group")
    places = full_operand(shape)[2:]
    sizes = {"n": shape[0], "g": groups, "r": shape[1] // groups}
    sizes |= {name: shape[dim] for dim, (name,) in enumerate(places, 2)}
    return (("n",), ("g", "r"), *places), sizes


def _sharing_groups(rule: ShardingRule, call: Call) -> ShardingRule:
    """Allow channels to be sharded: by complete groups, or by groups that ranks share."""
    left, found = rule.sizes["g"], sharded_axes(call, (1,))
    aligned = True
    for axis in found:
        aligned, left = aligned and left % call.specs[0].mesh_shape[axis] == 0, max(left, 1)
        left //= call.specs[0].mesh_shape[axis]
    if aligned:
        return rule
    inputs, outputs = (
        tuple(
            Shard(each.index(("g", "r"))) if ("g", "r") in each else Replicate() for each in given
        )
        for given in (rule.inputs, rule.outputs)
    )
    summary_bytes = 2 * rule.sizes["g"] * max(call.specs[0].dtype.itemsize, 4)
    beside = tuple(range(1, call.argument("input").ndim))
    extra = tuple(
        Candidate(inputs, outputs, exchange=Merge((axis,), beside, summary_bytes, None))
        for axis in found
    )
    return replace(rule, blocked=rule.blocked | {"g"}, extra=extra)


def _group_norm(call: Call) -> ShardingRule:
    """x, weight?, bias? -> y, mean, rstd."""
    full, sizes = _channels(call)
    moments = (("n",), ("g",))
    rule = ShardingRule(
        inputs=(full, *(((full[1],),) * (len(call.specs) - 1))),
        outputs=(full, moments, moments),
        sizes=sizes,
        blocked=frozenset("r"),
        settled=frozenset((1, 2)),
        local=sharing_groups(group_norm_shared),
    )
    return _sharing_groups(rule, call)


def _group_norm_backward(call: Call) -> ShardingRule:
    """grad, x, mean, rstd, weight? -> grad_x?, grad_weight?, grad_bias?."""
    full, sizes = _channels(call)
    moments, weight = (("n",), ("g",)), (full[1],)
    operands = {"mean": moments, "rstd": moments, "weight": weight}
    rule = ShardingRule(
        inputs=tuple(operands.get(name, full) for name in call.names),
        outputs=_kept((full, weight, weight), call.argument("output_mask")),
        sizes=sizes,
        blocked=frozenset("r"),
        local=sharing_groups(group_norm_gradients),
    )
    return _sharing_groups(rule, call)


# Batch norm: normalization over all samples and positions, which are counted.


def _batch(call: Call) -> tuple[dict[str, Operand], Dims]:
    """Return operands by name (`weight` for one number per channel), and the normalized dims."""
    full = full_operand(call.argument("input").shape)
    dims = tuple(dim for dim in range(len(full)) if dim != 1)
    every = dict.fromkeys(("input", "grad_out"), full)
    return every | {"reserve": ((),), "weight": (full[1],)}, dims


def _batch_norm(call: Call) -> ShardingRule:
    """x, weight?, bias?, running_mean?, running_var? -> y, mean, rstd and more."""
    operands, dims = _batch(call)
    shape = call.specs[0].shape
    each = operands["weight"]
    training = call.argument("training", "with_update" in call.op._schema.name)
    return ShardingRule(
        inputs=tuple(operands.get(name, each) for name in call.names),
        outputs=(
            operands["input"],
            *(
                each if training and meta.shape == shape[1:2] else ((),)
                for meta in call.outputs[1:]
            ),
        ),
        sizes=factor_sizes(shape),
        settled=frozenset(range(1, len(call.outputs))),
        local=sharing(0, dims, batch_norm_shared(dims)) if training else known_moments,
    )


def _batch_norm_backward(call: Call) -> ShardingRule:
    """grad, x, weight?, running stats?, mean?, rstd? -> grad_x?, grad_weight?, grad_bias?."""
    operands, dims = _batch(call)
    each = operands["weight"]
    training = call.argument("train", call.argument("update"))
    if not training:
        operands |= dict.fromkeys(("save_mean", "save_invstd", "save_var"), ((),))
    outputs = _kept((operands["input"], each, each), call.argument("output_mask"))
    return ShardingRule(
        inputs=tuple(operands.get(name, each) for name in call.names),
        outputs=outputs,
        sizes=factor_sizes(call.specs[1].shape),
        settled=frozenset(n for n, out in enumerate(outputs) if training and out is each),
        local=sharing(1, dims, batch_norm_gradients(dims) if training else None),
    )


def _weight_norm(call: Call) -> ShardingRule:
    """A weight over its norm, and gradients; may be sharded along `dim`, with a norm per slice."""
    shape = call.specs[0].shape
    dim = call.argument("dim", 0) % len(shape)
    each = tuple((f"d{dim}",) if number == dim else () for number in range(len(shape)))

    def operand(other: Sequence[int]) -> Operand:
        return full_operand(shape) if tuple(other) == tuple(shape) else each

    return ShardingRule(
        inputs=tuple(operand(spec.shape) for spec in call.specs),
        outputs=tuple(operand(meta.shape) for meta in call.outputs),
        sizes=factor_sizes(shape),
        blocked=frozenset(f"d{number}" for number in range(len(shape)) if number != dim),
    )


ROWS = {
    **same_row(
        "_weight_norm_interface _weight_norm_interface_backward",
        Row(_weight_norm, "dim may be sharded"),
    ),
    "native_layer_norm": Row(_layer_norm, "x.. n, n, n -> x.. n, x.. 1, x.. 1"),
    "_fused_rms_norm": Row(_layer_norm, "x.. n, n -> x.. n, x.. 1"),
    **same_row(
        "native_layer_norm_backward _fused_rms_norm_backward",
        Row(_layer_norm_backward, "x.. n, x.. n, x.. 1, x.. 1, n, n -> x.. n, n, n"),
    ),
    "native_group_norm": Row(_group_norm, "n (g r) s.., (g r), (g r) -> n (g r) s.., n g, n g"),
    "native_group_norm_backward": Row(
        _group_norm_backward,
        "n (g r) s.., n (g r) s.., n g, n g, (g r) -> n (g r) s.., (g r), (g r)",
    ),
    **same_row(
        "_native_batch_norm_legit _native_batch_norm_legit_no_training "
        "_native_batch_norm_legit_functional _batch_norm_with_update _batch_norm_no_update "
        "_batch_norm_with_update_functional",
        Row(_batch_norm, "n c s.., c, c, c, c -> n c s.., c, c"),
    ),
    **same_row(
        "native_batch_norm_backward batch_norm_backward",
        Row(_batch_norm_backward, "n c s.., n c s.., c, c, c, c, c -> n c s.., c, c"),
    ),
}
