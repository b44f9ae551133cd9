"""Check a rule against its mathematics, in a single process without process group or communication.

The arguments of a call are distributed as a candidate specifies, the local operator runs once per
coordinate, the results are reassembled as the candidate specifies, and that is compared with the
full run. A candidate that communicates itself (an exchange of rows, a weight that is summed) runs
on threads instead, and is reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from dtensor_core.layout import AxisSharding, held_extents
from dtensor_core.operators.kernels.local_operator import local_operator
from dtensor_core.operators.rules.call import Call, tensors
from dtensor_core.operators.rules.sharding_rule import Candidate, ShardingRule, candidates
from dtensor_core.operators.table import rule_of
from dtensor_core.placement import (
    Partial,
    Placement,
    Replicate,
    Shard,
    _StridedShard,
    norm_exponent,
)
from dtensor_core.redistribute.distribute import split
from dtensor_core.redistribute.execute import Origin
from dtensor_core.redistribute.partial_combine import within
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.testing import kept_mesh, run_threads

# Tolerances of results that are neither of double precision nor integers.
_NEAR = {torch.float32: 1e-4, torch.complex64: 1e-4, torch.complex32: 1e-2}
_NEAR |= {torch.float16: 1e-2, torch.bfloat16: 1e-1}
REDUCTIONS = ("sum", "avg", "max", "min", "product", "norm2")


class CommunicatesError(AttributeError):
    """A local operator has used more of the mesh than its coordinate."""


class Axis:
    """Minimal one-axis DeviceMesh for specs, seen from a coordinate."""

    ndim = 1
    mesh_dim_names = None
    device_type = "cpu"

    def __init__(self, ranks: int, coord: int) -> None:
        self.shape = (ranks,)
        self.coord = coord

    def get_coordinate(self) -> list[int]:
        return [self.coord]

    def __getattr__(self, name: str) -> Any:
        raise CommunicatesError(name)


@lru_cache(maxsize=64)
def axis(ranks: int, coord: int) -> Axis:
    return Axis(ranks, coord)


@dataclass(frozen=True, eq=False)  # a sample is itself, whatever its tensors equal
class Sample:
    """One call on full tensors, and the number of ranks to distribute it over.

    Attributes:
        compare_values: False for uninitialized results.
    """

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    compare_values: bool = True
    ranks: int = 3

    @cached_property
    def results(self) -> list[torch.Tensor]:
        """The results that are tensors, then the arguments written in place; not to be changed."""
        torch.manual_seed(7)
        args, kwargs = tree_map_only(torch.Tensor, torch.clone, (self.args, self.kwargs))
        return [*only_tensors(self.op(*args, **kwargs)), *written(self.op, args)]


def only_tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def written(op: OpOverload, args: Sequence[Any]) -> list[torch.Tensor]:
    return [args[place] for place in _written_places(op) if isinstance(args[place], torch.Tensor)]


@lru_cache(maxsize=1024)
def _written_places(op: OpOverload) -> tuple[int, ...]:
    return tuple(
        place
        for place, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None
        and argument.alias_info.is_write
        and str(argument.type) == "Tensor"
        and not argument.kwarg_only
    )


@dataclass(frozen=True)
class Offer:
    """A candidate, the rule that offers it, and the placements of the arguments."""

    rule: ShardingRule
    candidate: Candidate
    present: tuple[Placement, ...]


def meta_of(tensor: torch.Tensor) -> TensorMeta:
    return TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)


def offers(sample: Sample, reductions: Sequence[str] = REDUCTIONS) -> Iterator[Offer]:
    """Yield the candidates of a call for many placements of its arguments, each once."""
    results = sample.results
    written_places = _written_places(sample.op)
    returned = any(each.alias_info for each in sample.op._schema.returns)
    fits = [sample.args[place].shape == results[0].shape for place in written_places]
    if returned and not all(
        fits
    ):  # no rule is asked: the call is refused, or runs as its functional form
        return
    outputs = tuple(meta_of(each) for each in results[: len(results) - len(written_places)])
    given = only_tensors((sample.args, sample.kwargs))
    numbers = [
        next(n for n, each in enumerate(given) if each is sample.args[place])
        for place in written_places
    ]
    seen: set[Any] = set()
    for present in _layouts(given, reductions):
        call = _call(sample, axis(sample.ranks, 0), present, outputs)
        rule = rule_of(call)
        if rule is None:
            continue
        for candidate in candidates(rule, rule.sizes, sample.ranks, present):
            key = (candidate.inputs, candidate.outputs, candidate.exchange is None)
            kept = zip(numbers, candidate.outputs, strict=False) if returned else ()
            if key in seen or any(candidate.inputs[n] is not out for n, out in kept):
                continue
            if not all(map(can_be, given, candidate.inputs)):
                continue
            seen.add(key)
            yield Offer(rule, candidate, present)


def _layouts(
    given: Sequence[torch.Tensor], reductions: Sequence[str]
) -> Iterator[tuple[Placement, ...]]:
    """Placements of the arguments: all equal where possible, and the first unlike the rest."""
    dims = range(max((tensor.ndim for tensor in given), default=0))
    kinds: list[Placement] = [Replicate()]
    kinds += [Shard(dim) for dim in dims]
    kinds += [_StridedShard(dim, split_factor=2) for dim in dims]
    kinds += [Partial(reduce_op) for reduce_op in reductions]
    found: dict[tuple[Placement, ...], None] = {}
    for kind in kinds:
        alike = tuple(kind if can_be(tensor, kind) else Replicate() for tensor in given)
        found[alike] = None
        for number in range(len(given)):
            found[tuple(p if n == number else Replicate() for n, p in enumerate(alike))] = None
    return iter(found)


def can_be(tensor: torch.Tensor, placement: Placement) -> bool:
    """Return whether a tensor may have this placement."""
    dim = placement.sharded_dim
    if dim is not None:
        return dim < tensor.ndim
    if isinstance(placement, Partial):
        return _partials_exist(tensor.dtype, placement.reduce_op)
    return True


def _partials_exist(dtype: torch.dtype, reduce_op: str) -> bool:
    if dtype is torch.bool:
        return reduce_op in ("max", "min")
    if dtype.is_complex:
        return reduce_op in ("sum", "avg")
    return dtype.is_floating_point or reduce_op in ("sum", "max", "min")


def _call(
    sample: Sample, mesh: Any, placements: Sequence[Placement], outputs: Sequence[TensorMeta]
) -> Call:
    numbers = iter(placements)

    def spec_of(tensor: torch.Tensor) -> Spec:
        return Spec(mesh, (next(numbers),), meta_of(tensor))

    args, kwargs = tree_map_only(torch.Tensor, spec_of, (sample.args, sample.kwargs))
    specs = tuple(tensors((*args, *kwargs.values())))
    return Call(sample.op, args, kwargs, specs, tuple(outputs))


def local_parts(tensor: torch.Tensor, placement: Placement, ranks: int) -> list[torch.Tensor]:
    """Local parts by coordinate; partial values differ and reduce to the tensor."""
    if isinstance(placement, Partial):
        return partials(tensor, placement.reduce_op, ranks)
    if placement.sharded_dim is not None:
        return [piece.contiguous() for piece in split(tensor, placement, ranks)]
    return [tensor] * ranks


def partials(tensor: torch.Tensor, reduce_op: str, ranks: int) -> list[torch.Tensor]:
    """Partial values that reduce to the tensor; infinities are on the first rank."""
    noise = _noise(tensor, ranks)
    if reduce_op in ("sum", "avg"):
        scale = ranks if reduce_op == "avg" else 1
        rest = [torch.where(tensor.isfinite(), each, torch.zeros_like(each)) for each in noise[1:]]
        return [tensor * scale - sum(rest), *rest]
    if reduce_op in ("max", "min") and tensor.dtype is torch.bool:
        mix = torch.logical_and if reduce_op == "max" else torch.logical_or
        return [*(mix(tensor, each) for each in noise[1:]), tensor]
    if reduce_op in ("max", "min"):
        sign = -1 if reduce_op == "max" else 1
        # The rank that has the extreme differs from element to element.
        return list(
            torch.stack([tensor, *(tensor + sign * each.abs() for each in noise[1:])])
            .take_along_dim(torch.stack([each.real for each in noise]).argsort(0), 0)
            .unbind()
        )
    if reduce_op == "product":
        factors = [each.sign() * (each.abs() + 0.5) for each in noise[1:]]
        return [tensor / torch.stack(factors).prod(0), *factors]
    exponent = norm_exponent(reduce_op)
    assert exponent is not None, f"no partials for {reduce_op}"
    shares = torch.arange(1, ranks + 1) / sum(range(1, ranks + 1))
    return [tensor * float(share) ** (1 / exponent) for share in shares]


def _noise(tensor: torch.Tensor, ranks: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    kind = torch.complex128 if tensor.dtype.is_complex else torch.float64
    made = [torch.randn(tensor.shape, generator=generator, dtype=kind) * 2 for _ in range(ranks)]
    if tensor.dtype is torch.bool:
        return [each > 0 for each in made]
    return [each.to(tensor.dtype) for each in made]


def put_together(
    parts: Sequence[torch.Tensor], placement: Placement, shape: torch.Size
) -> torch.Tensor:
    """Reassemble a result from parts with this placement."""
    if isinstance(placement, Partial):
        stacked = torch.stack(list(parts))
        exponent = norm_exponent(placement.reduce_op)
        if exponent is not None:
            return stacked.pow(exponent).sum(0).pow(1 / exponent)
        return _REDUCE[placement.reduce_op](stacked).to(stacked.dtype)
    dim = placement.sharded_dim
    if dim is not None:
        return joined(parts, placement, shape)
    for part in parts[1:]:
        torch.testing.assert_close(part, parts[0], equal_nan=True)
    return parts[0]


_REDUCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda stacked: stacked.sum(0),
    "avg": lambda stacked: stacked.mean(0),
    "max": lambda stacked: stacked.amax(0),
    "min": lambda stacked: stacked.amin(0),
    "product": lambda stacked: stacked.prod(0),
}


def joined(parts: Sequence[torch.Tensor], placement: Placement, shape: torch.Size) -> torch.Tensor:
    """Reassemble a tensor from its shards."""
    dim = placement.sharded_dim
    assert dim is not None
    full = parts[0].new_empty(shape)
    for coord, piece in enumerate(parts):
        shard = AxisSharding(len(parts), coord, placement.num_blocks)
        start = 0
        for extent in held_extents(shape[dim], (shard,)):
            source = piece.narrow(dim, start, extent.size)
            full.narrow(dim, extent.offset, extent.size).copy_(source)
            start += extent.size
    return full


Near = Callable[[torch.Tensor, torch.Tensor, float], None]


def _is_near(value: torch.Tensor, full: torch.Tensor, near: float) -> None:
    torch.testing.assert_close(value, full, atol=near, rtol=near, equal_nan=True)


def check(sample: Sample, offer: Offer, is_near: Near = _is_near) -> bool:
    """Raise AssertionError if the candidate does not give the full run's result.

    Args:
        is_near: Compares a result with the full run's.

    Returns:
        True if the candidate communicated.
    """
    candidate, ranks = offer.candidate, sample.ranks
    sample = _with_positive_norms(sample, candidate)
    expected = sample.results
    num_written = len(_written_places(sample.op))
    outputs = tuple(meta_of(each) for each in expected[: len(expected) - num_written])
    leaves, structure = tree_flatten((sample.args, sample.kwargs))
    placements = iter(candidate.inputs)
    parts = [
        local_parts(leaf, next(placements), ranks)
        if isinstance(leaf, torch.Tensor)
        else [leaf] * ranks
        for leaf in leaves
    ]

    def run(mesh: Any, coord: int) -> list[torch.Tensor]:
        call = _call(sample, mesh, candidate.inputs, outputs)
        results = tuple(
            Spec(mesh, (placement,), meta)
            for placement, meta in zip(candidate.outputs, outputs, strict=True)
        )
        local = _local(sample.op, offer, call.specs, results)
        values = [each[coord] for each in parts]
        args, kwargs = tree_unflatten(tree_map_only(torch.Tensor, torch.clone, values), structure)
        torch.manual_seed(7)
        found = only_tensors(local(*args, **kwargs))
        for tensor, spec in zip(found, results, strict=True):
            assert tensor.shape == spec.local_shape, f"{tensor.shape} for {spec.text} at {coord}"
            assert tensor.dtype is spec.dtype, f"{tensor.dtype} for {spec.text}"
        return [*found, *written(sample.op, args)]

    communicates = candidate.exchange is not None
    try:
        got = [] if communicates else [run(axis(ranks, coord), coord) for coord in range(ranks)]
    except CommunicatesError:
        communicates = True
    if communicates:
        got = run_threads(lambda: _on_thread(run, ranks), ranks, timeout_s=20)
    _compare(sample, candidate, expected, got, is_near)
    return communicates


def _on_thread(run: Callable[[Any, int], Any], ranks: int) -> Any:
    mesh = kept_mesh((ranks,))
    return run(mesh, mesh.get_local_rank())


def _local(
    op: OpOverload, offer: Offer, inputs: Sequence[Spec], outputs: Sequence[Spec]
) -> Callable[..., Any]:
    """Return the local operator of a rank."""
    run = local_operator(op, offer.rule.local, inputs, outputs)
    exchange = offer.candidate.exchange
    if exchange is None:
        return run
    return within([exchange], op, run, inputs, outputs[0], [Origin(str(op), "argument")])


def _with_positive_norms(sample: Sample, candidate: Candidate) -> Sample:
    """Make tensors nonnegative where the candidate needs a norm, which has no sign."""
    placements = iter(candidate.inputs)
    leaves, structure = tree_flatten((sample.args, sample.kwargs))
    changed = False
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            placement = next(placements)
            if isinstance(placement, Partial) and norm_exponent(placement.reduce_op) is not None:
                leaves[number], changed = leaf.abs(), True
    if not changed:
        return sample
    args, kwargs = tree_unflatten(leaves, structure)
    return replace(sample, args=args, kwargs=kwargs)


def _compare(
    sample: Sample,
    candidate: Candidate,
    expected: Sequence[torch.Tensor],
    got: Sequence[Sequence[torch.Tensor]],
    is_near: Near,
) -> None:
    places = _written_places(sample.op)
    given = only_tensors((sample.args, sample.kwargs))
    back = [
        candidate.inputs[next(n for n, each in enumerate(given) if each is sample.args[place])]
        for place in places
    ]
    placements = itertools.chain(candidate.outputs, back)
    for number, (full, placement) in enumerate(zip(expected, placements, strict=True)):
        parts = [results[number] for results in got]
        if sample.compare_values:
            value = put_together(parts, placement, full.shape)
            near = max(_NEAR.get(each.dtype, 1e-7) for each in (full, *given))
            is_near(value, full, near)
