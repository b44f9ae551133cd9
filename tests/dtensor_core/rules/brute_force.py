"""Checks a rule against mathematics, with no process group.

The arguments of a call are split as a candidate says, the local operator runs once per
coordinate, the results are put together as the candidate says, and that is compared with the
full run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from dtensor_core.layout import Cut, held_extents
from dtensor_core.placement import (
    Partial,
    Placement,
    Replicate,
    norm_exponent,
    sharded_dim,
    split_factor,
)
from dtensor_core.redistribute.distribute import split
from dtensor_core.rules.call import Call, tensors
from dtensor_core.rules.local import local_operator
from dtensor_core.rules.rule import Candidate, candidates
from dtensor_core.rules.table import rule_of
from dtensor_core.spec import Spec, TensorMeta


class Axis:
    """As much of a one-axis DeviceMesh as a spec asks for, seen from one coordinate."""

    ndim = 1
    mesh_dim_names = None
    device_type = "cpu"

    def __init__(self, ranks: int, coord: int) -> None:
        self.shape = (ranks,)
        self.coord = coord

    def get_coordinate(self) -> list[int]:
        return [self.coord]


@dataclass(frozen=True)
class Sample:
    """One call on full tensors; results are compared unless they are uninitialised."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    compare_values: bool = True

    def run(self) -> Any:
        torch.manual_seed(7)
        args, kwargs = tree_map_only(torch.Tensor, torch.clone, (self.args, self.kwargs))
        return self.op(*args, **kwargs)


def meta_of(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)


def call_of(sample: Sample, mesh: Any, placements: Sequence[Placement] | None = None) -> Call:
    """The call with a spec for every tensor; replicated unless placements are given."""
    numbers = iter(placements or ())

    def spec_of(tensor: torch.Tensor) -> Spec:
        return Spec(mesh, (next(numbers, Replicate()),), meta_of(tensor))

    args, kwargs = tree_map_only(torch.Tensor, spec_of, (sample.args, sample.kwargs))
    outputs = [leaf for leaf in tree_flatten(sample.run())[0] if isinstance(leaf, torch.Tensor)]
    specs = tuple(tensors((*args, *kwargs.values())))
    return Call(sample.op, args, kwargs, specs, tuple(meta_of(output) for output in outputs))


def local_parts(tensor: torch.Tensor, placement: Placement, ranks: int) -> list[torch.Tensor]:
    """What each coordinate holds; addends differ, have both signs, and reduce to the tensor."""
    if isinstance(placement, Partial):
        return addends(tensor, placement.reduce_op, ranks)
    if sharded_dim(placement) is not None:
        return [piece.contiguous() for piece in split(tensor, placement, ranks)]
    return [tensor] * ranks


def addends(tensor: torch.Tensor, reduce_op: str, ranks: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    noise = [torch.randn(tensor.shape, generator=generator).to(tensor.dtype) for _ in range(ranks)]
    if reduce_op in ("sum", "avg"):
        rest = noise[1:]
        scale = ranks if reduce_op == "avg" else 1
        return [tensor * scale - sum(rest), *rest]
    if reduce_op in ("max", "min"):
        sign = -1 if reduce_op == "max" else 1
        return [tensor, *(tensor + sign * each.abs() for each in noise[1:])]
    exponent = norm_exponent(reduce_op)
    if exponent is not None:
        return [tensor * each ** (1 / exponent) for each in (0.5, 0.3, 0.2)]
    raise AssertionError(f"no addends for {reduce_op}")


def put_together(parts: list[torch.Tensor], placement: Placement, shape: torch.Size):
    """The value of a result whose parts lie as `placement` says."""
    if isinstance(placement, Partial):
        stacked = torch.stack(parts)
        exponent = norm_exponent(placement.reduce_op)
        if exponent is not None:
            return stacked.pow(exponent).sum(0).pow(1 / exponent)
        reduce: dict[str, Callable[..., torch.Tensor]] = {
            "sum": lambda: stacked.sum(0),
            "avg": lambda: stacked.mean(0),
            "max": lambda: stacked.amax(0),
            "min": lambda: stacked.amin(0),
            "product": lambda: stacked.prod(0),
        }
        return reduce[placement.reduce_op]()
    dim = sharded_dim(placement)
    if dim is not None:
        return joined(parts, placement, shape)
    for part in parts[1:]:
        torch.testing.assert_close(part, parts[0], equal_nan=True)
    return parts[0]


def joined(parts: list[torch.Tensor], placement: Placement, shape: torch.Size) -> torch.Tensor:
    """The whole of what every coordinate holds."""
    dim = sharded_dim(placement)
    assert dim is not None
    whole = parts[0].new_empty(shape)
    for coord, piece in enumerate(parts):
        cut = Cut(len(parts), coord, split_factor(placement))
        start = 0
        for extent in held_extents(shape[dim], (cut,)):
            source = piece.narrow(dim, start, extent.size)
            whole.narrow(dim, extent.offset, extent.size).copy_(source)
            start += extent.size
    return whole


def offered(sample: Sample, ranks: int, present: Placement) -> list[Candidate]:
    """The candidates for a call whose tensors are all placed as `present` where they can be."""
    call = call_of(sample, Axis(ranks, 0))
    placements = [fitting(present, spec) for spec in call.specs]
    call = call_of(sample, Axis(ranks, 0), placements)
    rule = rule_of(call)
    assert rule is not None, f"{sample.op} has no row"
    every = candidates(rule, rule.sizes, ranks, placements)
    found = [each for each in every if each.exchange is None]  # ranks alone can't exchange
    if sample.op._schema.is_mutable:
        found = [each for each in found if each.inputs[0] is each.outputs[0]]
    return found


def fitting(placement: Placement, spec: Spec) -> Placement:
    """The placement, or Replicate for a tensor that can't have it."""
    dim = sharded_dim(placement)
    if dim is not None and dim >= spec.ndim:
        return Replicate()
    if placement.is_partial() and not spec.dtype.is_floating_point:
        return Replicate()
    return placement


def check(sample: Sample, candidate: Candidate, ranks: int) -> None:
    """Raises AssertionError where the candidate does not give the full run's result."""
    expected = [leaf for leaf in tree_flatten(sample.run())[0] if isinstance(leaf, torch.Tensor)]
    leaves, structure = tree_flatten((sample.args, sample.kwargs))
    parts = iter(candidate.inputs)
    split_leaves = [
        local_parts(leaf, next(parts), ranks) if isinstance(leaf, torch.Tensor) else [leaf] * ranks
        for leaf in leaves
    ]
    results: list[list[torch.Tensor]] = []
    for coord in range(ranks):
        mesh = Axis(ranks, coord)
        call = call_of(sample, mesh, candidate.inputs)
        rule = rule_of(call)
        assert rule is not None
        outputs = [
            Spec(mesh, (placement,), meta)  # pyright: ignore[reportArgumentType]
            for placement, meta in zip(candidate.outputs, call.outputs, strict=True)
        ]
        run = local_operator(sample.op, rule, call.specs, outputs)
        args, kwargs = tree_unflatten(
            [
                leaf[coord].clone() if isinstance(leaf[coord], torch.Tensor) else leaf[coord]
                for leaf in split_leaves
            ],
            structure,
        )
        torch.manual_seed(7)
        result = tree_flatten(run(*args, **kwargs))[0]
        results.append([leaf for leaf in result if isinstance(leaf, torch.Tensor)])
    for number, (whole, placement) in enumerate(zip(expected, candidate.outputs, strict=True)):
        got = [result[number] for result in results]
        if not sample.compare_values:
            assert sum(part.numel() for part in got) >= whole.numel()
            continue
        value = put_together(got, placement, whole.shape)
        torch.testing.assert_close(value, whole, atol=1e-4, rtol=1e-4, equal_nan=True)
