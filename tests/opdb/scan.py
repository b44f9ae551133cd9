"""Runs torch's operator database on DTensors over ranks that are threads.

Every sample of an operator is run once on whole tensors and once for each combination of its
arguments' placements; what comes back is compared on every rank.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.testing._internal import common_methods_invocations
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

import dtensor_core
from dtensor_core import DTensor, observe
from dtensor_core.dispatch.missing import NO_RULE
from dtensor_core.placement import Partial, Placement, sharded_dim
from dtensor_core.testing import RankFailure, kept_mesh, run_threads
from tests.opdb.runs import Run, placements_of

PASS, WRONG, DESYNC, ERROR = "pass", "wrong values", "desynchronised", "error"
# Addends that the user gave are not reduced in place: torch's rule.
REFUSED = "refused"
# In place of 20, 10, 5 and 3, of which most samples are made.
EVEN = {"L": 24, "M": 12, "S": 4, "XS": 2}
# Their results are whatever was in memory.
UNINITIALISED = {"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided"}
# Factorisations are unique up to signs and order only.
AMBIGUOUS = {"empty_permuted", "svd_lowrank", "pca_lowrank"}


@dataclass
class Tally:
    """What became of the combinations of one operator."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)

    @property
    def verdict(self) -> str:
        """All, some or none of the combinations passed; nothing could be tried."""
        total = sum(self.outcomes.values()) - self.outcomes[REFUSED]
        passed = self.outcomes[PASS]
        return (
            "untried" if not total else "all" if passed == total else "some" if passed else "none"
        )


def scan(info: Any, run: Run, *, samples: int, combinations: int) -> Tally:
    """The outcomes of one operator."""
    tally = Tally()
    chooser = random.Random(0)
    for sample in itertools.islice(samples_of(info, run), samples):
        case = case_of(info, run, sample)
        if case is None:
            continue
        for placements in combinations_of(case.tensors, run, chooser, combinations):
            outcome, text = _outcome(case, run, placements, tally)
            tally.outcomes[outcome] += 1
            if outcome not in (PASS, REFUSED):
                shapes = [tuple(t.shape) for t in case.tensors]
                layouts = [" ".join(map(str, each)) for each in placements]
                tally.failures.append(f"{outcome}: {shapes} {layouts} {case.text}: {text}")
    return tally


@dataclass
class Case:
    """One call: its leaves, those that are tensors, and the result on whole tensors."""

    run: Callable[[Any, Any], list[Any]]
    leaves: list[Any]
    structure: Any
    tensors: list[torch.Tensor]
    expected: list[Any]
    text: str
    values: bool


def samples_of(info: Any, run: Run) -> Iterator[Any]:
    """The operator's samples; where a run wants even shards, of sizes that four ranks can share."""
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        for name, size in [] if run.uneven else EVEN.items():
            patch.setattr(common_methods_invocations, name, size)
        try:
            yield from info.sample_inputs("cpu", run.dtype, requires_grad=run.variant == "backward")
        except Exception:
            return


def case_of(info: Any, run: Run, sample: Any) -> Case | None:
    leaves, structure = tree_flatten(((sample.input, *sample.args), sample.kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors or not all(_ordinary(tensor) for tensor in tensors):
        return None
    leaves = [
        leaf.detach().resolve_conj().clone().requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.Tensor)
        else leaf
        for leaf in leaves
    ]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    call = _call_of(info, run)
    if call is None:
        return None
    try:
        args, kwargs = tree_unflatten(_copied(leaves), structure)
        expected = [_plain(leaf) for leaf in call(args, kwargs)]
    except Exception:
        return None
    values = info.name not in UNINITIALISED | AMBIGUOUS
    text = str([leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)])[:80]
    return Case(call, leaves, structure, tensors, expected, text, values)


def _ordinary(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested


def _plain(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _copied(leaves: Sequence[Any]) -> list[Any]:
    return [
        leaf.detach().clone().requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.Tensor)
        else leaf
        for leaf in leaves
    ]


def _call_of(info: Any, run: Run) -> Callable[[Any, Any], list[Any]] | None:
    """The function of a run: from arguments to the leaves of what is compared."""

    def seeded(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        torch.manual_seed(5)
        return function(*args, **kwargs)

    def forward(args: Any, kwargs: Any) -> list[Any]:
        return tree_flatten(seeded(info.op, args, kwargs))[0]

    def inplace(args: Any, kwargs: Any) -> list[Any]:
        result = seeded(info.inplace_variant, args, kwargs)
        return [result, args[0]]

    def backward(args: Any, kwargs: Any) -> list[Any]:
        result = tree_flatten(seeded(info.op, args, kwargs))[0]
        result = [leaf for leaf in result if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        inputs = [
            leaf
            for leaf in tree_flatten((args, kwargs))[0]
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        weights = [_weight(leaf) for leaf in result]
        grads = torch.autograd.grad(result, inputs, weights, allow_unused=True)
        return [leaf.detach() for leaf in result] + list(grads)

    def out(args: Any, kwargs: Any) -> list[Any]:
        with torch.no_grad():
            shape = info.op(*args, **kwargs)
            target = tree_map_only(torch.Tensor, torch.empty_like, shape)
            if isinstance(target, (list, tuple)):
                target = tuple(target)
            info.op(*args, **kwargs, out=target)
        return tree_flatten(target)[0]

    if run.variant == "inplace":
        return inplace if info.inplace_variant is not None else None
    if run.variant == "out":
        return out if info.supports_out else None
    if run.variant == "backward":
        return backward if info.supports_autograd else None
    return forward


def _weight(leaf: torch.Tensor) -> torch.Tensor:
    """What a result's gradient is: numbers of both signs, the same for every layout."""
    generator = torch.Generator().manual_seed(9)
    weight = torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)
    if isinstance(leaf, DTensor):
        return DTensor.from_local(weight, leaf.device_mesh)
    return weight


def combinations_of(
    tensors: Sequence[torch.Tensor], run: Run, chooser: random.Random, limit: int
) -> list[tuple[tuple[Placement, ...], ...]]:
    """Placements for every tensor, at most `limit` combinations, the simplest always there."""
    choices = [
        list(itertools.product(*(list(placements_of(tensor, run, size)) for size in run.mesh)))
        for tensor in tensors
    ]
    choices = [[each for each in one if _consistent(each)] for one in choices]
    total = 1
    for each in choices:
        total *= len(each)
    if total <= limit:
        return list(itertools.product(*choices))
    picked = {tuple(chooser.choice(each) for each in choices) for _ in range(limit * 2)}
    return sorted(picked, key=str)[:: max(1, len(picked) // limit)][:limit]


def _consistent(placements: Sequence[Placement]) -> bool:
    """Addends of one kind only."""
    return len({p for p in placements if isinstance(p, Partial)}) < 2


def laid_out(
    tensor: torch.Tensor, mesh: Any, placements: Sequence[Placement], kit: Any = dtensor_core
) -> Any:
    """The tensor as a DTensor of `kit`; addends differ between the ranks and have both signs.

    A kit has the names of `torch.distributed.tensor`.
    """
    whole = [_placement_of(kit, None if p.is_partial() else p) for p in placements]
    data = tensor.detach()
    made = kit.distribute_tensor(data.clone(), mesh, whole, src_data_rank=None)
    local = made.to_local()
    for axis, placement in enumerate(placements):
        if isinstance(placement, Partial):
            local = _addend(local, placement.reduce_op, mesh.get_local_rank(axis), mesh.size(axis))
    result = kit.DTensor.from_local(
        local.contiguous() if not local.is_contiguous() and local.numel() == 0 else local,
        mesh,
        [_placement_of(kit, placement) for placement in placements],
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    return result.requires_grad_(tensor.requires_grad)


def _placement_of(kit: Any, placement: Placement | None) -> Any:
    """The same placement of another kit; None is whole."""
    if isinstance(placement, Partial):
        return kit.Partial(placement.reduce_op)
    dim = None if placement is None else sharded_dim(placement)
    return kit.Replicate() if dim is None else kit.Shard(dim)


def _addend(value: torch.Tensor, reduce_op: str, coord: int, ranks: int) -> torch.Tensor:
    if reduce_op in ("max", "min"):
        sign = -1 if reduce_op == "max" else 1
        return value if coord == 1 % ranks else value + sign * (1 + coord)
    # Powers of two keep the sum exact enough: v = 2v - v + 0v + ...; infinities are on one rank.
    share = {0: 2, 1: -1}.get(coord, 0) if ranks > 1 else 1
    part = value * (share * ranks if reduce_op == "avg" else share)
    return torch.where(value.isfinite(), part, value if coord == 0 else torch.zeros_like(value))


def _outcome(
    case: Case, run: Run, placements: Sequence[Sequence[Placement]], tally: Tally
) -> tuple[str, str]:
    def body() -> Any:
        mesh = kept_mesh(run.mesh)
        numbers = iter(placements)
        leaves = [
            laid_out(leaf, mesh, next(numbers)) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in case.leaves
        ]
        args, kwargs = tree_unflatten(leaves, case.structure)
        try:
            result = case.run(args, kwargs)
            return [_whole(leaf) for leaf in result]
        except Exception as error:
            return error

    def hear(news: observe.Announcement) -> None:
        if news.note == NO_RULE:
            tally.missing.add(news.operator)

    with warnings.catch_warnings(), observe.listening(hear):
        warnings.simplefilter("ignore")
        try:
            results = run_threads(body, torch.Size(run.mesh).numel(), timeout_s=20)
        except RankFailure as failure:
            return DESYNC, str(failure)[:600].replace("\n", " | ")
    return judged(case, results)


def _whole(leaf: Any) -> Any:
    return leaf.full_tensor().detach() if isinstance(leaf, DTensor) else leaf


def judged(case: Case, results: Sequence[Any]) -> tuple[str, str]:
    errors = [each for each in results if isinstance(each, Exception)]
    if errors:
        text = f"{type(errors[0]).__name__}: {str(errors[0])[:300]}".replace("\n", " | ")
        if len(errors) < len(results):
            return DESYNC, text
        return (REFUSED if "placement changes are not supported" in text else ERROR), text
    for rank, result in enumerate(results):
        for got, expected in itertools.zip_longest(result, case.expected):
            problem = _difference(got, expected, case.values)
            if problem:
                return WRONG, f"rank {rank}: {problem}"
    return PASS, ""


def _difference(got: Any, expected: Any, values: bool) -> str:
    if not isinstance(expected, torch.Tensor):
        if isinstance(got, torch.Tensor):
            # An absent gradient and one of zeros mean the same.
            return "" if expected is None and not got.any() else f"{got} for {expected}"
        return "" if got == expected or got != got else f"{got} for {expected}"
    if got is None:
        return "" if not expected.any() else "no gradient"
    if not isinstance(got, torch.Tensor):
        return f"{got!r} for a tensor"
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return f"{got.dtype} {tuple(got.shape)} for {expected.dtype} {tuple(expected.shape)}"
    if not values:
        return ""
    tolerance = 2e-2 if expected.dtype in (torch.bfloat16, torch.float16) else 2e-4
    try:
        torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return ""
