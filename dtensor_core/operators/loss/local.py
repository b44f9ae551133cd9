"""Losses of local shards, divided by global counts, and by the classes that a rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import (
    Local,
    LocalMaker,
    accumulation_dtype,
    by_name,
    called_with,
)
from dtensor_core.operators.kernels.local_positions import LocalPositions
from dtensor_core.placement import Partial, Replicate
from dtensor_core.redistribute.execute import Origin, execute
from dtensor_core.redistribute.plan import plan_between
from dtensor_core.spec import Spec

NONE, MEAN, SUM = 0, 1, 2  # the `reduction` of a loss


def _is_sharded(specs: Sequence[Spec]) -> bool:
    return any(p.sharded_dim is not None for spec in specs for p in spec.placements)


def mean_by_global_count(count: int) -> LocalMaker:
    """Compute a mean as a sum over the global count if anything is sharded.

    Losses of half-precision dtypes are float32 until their sum is divided.
    """

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        if not _is_sharded(inputs):
            return op

        def mean(*args: Any, **kwargs: Any) -> Any:
            found = called_with(op, args, kwargs, reduction=NONE)
            losses, *rest = found if isinstance(found, tuple) else (found,)
            made = losses.sum(dtype=accumulation_dtype(losses.dtype)).div_(count).to(losses.dtype)
            return (made, *rest) if rest else made

        return mean

    return maker


def gradient_of_mean(count: int) -> LocalMaker:
    """Compute a mean's gradient as a sum's, divided by the global count, if sharded.

    The gradient of a sum in half precision may overflow, so it is float32.
    """

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        out = outputs[0]
        if not _is_sharded(inputs) or out is None:
            return op

        def widened(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return value.to(accumulation_dtype(value.dtype))

        def gradient(*args: Any, **kwargs: Any) -> torch.Tensor:
            named = {name: widened(value) for name, value in kwargs.items()}
            found = called_with(op, list(map(widened, args)), named, reduction=SUM)
            return found.div_(count).to(out.dtype)

        return gradient

    return maker


def nll(dim: int, reduction: int) -> LocalMaker:
    """Compute negative log likelihoods; a mean is weighted by the global sum of weights."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        out = outputs[1]
        if not _is_sharded(inputs) or out is None:
            return op
        positions, width = LocalPositions(op, inputs[0], dim), accumulation_dtype(out.dtype)
        total = Spec(out.mesh, out.placements, out.tensor_meta._replace(dtype=width))
        dims = [each.sharded_dim for each in inputs[0].placements]
        partial = total.with_placements(
            [Replicate() if each in (None, dim) else Partial() for each in dims]
        )
        plan, origin = plan_between(partial, total), Origin(str(op), "total_weight")

        def loss(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
            given = by_name(op, args, kwargs)
            how = NONE if reduction == MEAN else reduction
            found, weight = on_local_classes(op, args, kwargs, positions, how)
            if reduction != MEAN:
                return found, weight
            counted = (given["target"] != given["ignore_index"]).to(width)
            if given["weight"] is not None:
                # An ignored target may be no class; it selects some weight, which counts 0 times.
                counted *= given["weight"][given["target"].clamp(0, positions.size - 1)]
            weight = execute(counted.sum(), partial, plan, origin)
            return (found.sum(dtype=width) / weight).to(found.dtype), weight.to(found.dtype)

        return loss

    return maker


def on_local_classes(
    op: Local, args: Sequence[Any], kwargs: Any, positions: LocalPositions, reduction: int
) -> Any:
    """Run the operator on this rank's classes; samples of other classes are ignored."""
    if positions.all:
        return called_with(op, args, kwargs, reduction=reduction)
    given = by_name(op, args, kwargs)
    no_class = positions.count  # no local class has this number
    ignored = given["target"] == given["ignore_index"]
    here = positions.local(given["target"].masked_fill(ignored, 0), no_class)[0]
    here.masked_fill_(ignored, no_class)
    weight = given["weight"]
    if weight is not None:
        pieces = [weight.narrow(0, at.offset, at.size) for at in positions.pieces if at.size]
        weight = torch.cat(pieces or [weight[:1]])
    changed = {"self": positions.not_empty(given["self"]), "target": here, "weight": weight}
    changed |= {"reduction": reduction, "ignore_index": no_class}
    return called_with(op, args, kwargs, **changed)
