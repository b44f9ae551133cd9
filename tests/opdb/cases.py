"""The calls of a run: samples of an OpInfo and torch's results for them on full tensors."""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch.testing._internal import common_methods_invocations, common_utils
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from dtensor_core import DTensor
from dtensor_core.placement import Replicate, Shard
from tests.opdb import derivatives
from tests.opdb.nudges import Nudging
from tests.opdb.runs import Run

# Replace torch's sizes 20, 10, 5 and 3, from which most samples are made, where shards must be
# even.
EVEN = {"L": 24, "M": 12, "S": 4, "XS": 2}
# Its lengths depend on torch's sizes and are not checked: with others it reads out of bounds.
_OF_OWN_SIZES = {"_segment_reduce"}
# The OpInfo has the method of torch.Tensor, which bypasses the override of a subclass.
_AS_USERS_WRITE: dict[str, Any] = {"__getitem__": operator.getitem}
# In-place operators that change the argument's dims, and its placements with them.
_RESHAPING = {"squeeze", "unsqueeze", "transpose", "t", "swapaxes", "swapdims"}
_RESHAPING |= {"as_strided", "resize_", "resize_as_"}
_WIDER = {
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
# Number of perturbed runs that estimate the rounding error of a result.
_NUDGES = 16
_DIFFERENTIATING = {"backward", *derivatives.BY_NAME}
# From arguments to the compared leaves; the number varies what samples leave open.
Call = Callable[[Any, Any, int], list[Any]]


@dataclass
class Case:
    """A call of an OpInfo.

    Attributes:
        leaves: Leaves of the arguments; some are tensors.
        expected: Leaves of the result on full tensors.
        seconds: Time that torch takes for the call.
    """

    info: Any
    run: Call
    leaves: list[Any]
    structure: Any
    tensors: list[torch.Tensor]
    expected: list[Any]
    seconds: float = 0.0
    _exact: list[Any] | None = None
    _nudged: list[list[Any]] = field(default_factory=list)
    _wide: Case | None = None

    @property
    def text(self) -> str:
        """The arguments that are not tensors."""
        return str([leaf for leaf in self.leaves if not isinstance(leaf, torch.Tensor)])[:80]

    @property
    def exact(self) -> list[Any]:
        """The result in a dtype of at least twice the width; empty if torch raises."""
        if self._exact is None:
            self._exact = []
            with suppress(Exception):
                made = self.run(*self.arguments(_copied(self.wide_leaves)), 0)
                self._exact = [_plain(leaf) for leaf in made]
        return self._exact

    @property
    def wide_leaves(self) -> list[Any]:
        """The leaves, with tensors in a dtype of at least twice the width."""
        return [_widened(leaf) for leaf in self.leaves]

    def in_wide_numbers(self) -> Case | None:
        """The same call in a dtype of at least twice the width; None if there is none."""
        if self._wide is None and self.exact:
            leaves = self.wide_leaves
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            if [each.dtype for each in tensors] != [each.dtype for each in self.tensors]:
                self._wide = replace(
                    self, leaves=leaves, tensors=tensors, expected=self.exact, _exact=[], _nudged=[]
                )
        return self._wide

    def nudged(self) -> Iterator[list[Any]]:
        """Yield the results for perturbed numbers; an empty result where torch raises."""
        for seed in range(_NUDGES):
            if seed == len(self._nudged):
                mode, made = Nudging(seed), []
                leaves = tree_map_only(torch.Tensor, mode.nudged, _copied(self.leaves))
                with suppress(Exception), mode:
                    made = self.run(*self.arguments(leaves), 0)
                self._nudged.append([_plain(leaf) for leaf in made])
            yield self._nudged[seed]

    def arguments(self, leaves: Sequence[Any]) -> tuple[Any, Any]:
        """Return the positional and keyword arguments with these leaves."""
        return tree_unflatten(leaves, self.structure)


def cases(info: Any, run: Run, limit: int, left_out: Counter[str] | None = None) -> Iterator[Case]:
    """Yield at most `limit` cases, spaced evenly over all samples; counts those left out."""
    call = _CALLS[run.variant](info)
    if call is None:
        return
    torch.manual_seed(0)
    own = run.uneven or info.name in _OF_OWN_SIZES
    with (
        patch.dict(vars(common_methods_invocations), {} if own else EVEN),
        # It would search the stack for a unittest, which takes longer than making the samples.
        patch.object(common_utils, "extract_test_fn", _no_unittest),
    ):
        samples = list(_samples(info, run))
    cases = (_case(info, call, sample) for sample in _spread(samples, limit))
    for case in cases:
        if isinstance(case, Case):
            yield case
        elif left_out is not None:
            left_out[case] += 1


def _no_unittest() -> None:
    """The unittest that asks for samples, which would be told of each: none."""


def _samples(info: Any, run: Run) -> Iterator[Any]:
    """Samples of an OpInfo; some raise half-way at sizes that they do not expect."""
    differentiated = run.variant in _DIFFERENTIATING
    with suppress(RuntimeError, IndexError, ValueError):
        yield from info.sample_inputs("cpu", run.dtype, requires_grad=differentiated)


def _spread(samples: Sequence[Any], limit: int) -> Sequence[Any]:
    last = len(samples) - 1
    if last < limit:
        return samples
    return [samples[round(number * last / max(limit - 1, 1))] for number in range(limit)]


def _case(info: Any, call: Call, sample: Any) -> Case | str:
    """Build the case of a sample, or return the reason why there is none."""
    leaves, structure = tree_flatten(((sample.input, *sample.args), sample.kwargs))
    leaves = [leaf.resolve_conj() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    leaves = _copied(leaves)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors:
        return "no tensor"
    if not all(map(_ordinary, tensors)):
        return "sparse, nested or quantised"
    case = Case(info, call, leaves, structure, tensors, [])
    start = time.perf_counter()
    try:
        case.expected = [_plain(leaf) for leaf in call(*case.arguments(_copied(leaves)), 0)]
    except Exception:
        return "torch itself refuses"
    case.seconds = time.perf_counter() - start
    return case


def _ordinary(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested


def _plain(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _widened(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.dtype not in _WIDER:
        return leaf
    return leaf.detach().to(_WIDER[leaf.dtype]).requires_grad_(leaf.requires_grad)


def _copied(leaves: Sequence[Any]) -> list[Any]:
    return [
        leaf.detach().clone().requires_grad_(leaf.requires_grad)
        if isinstance(leaf, torch.Tensor)
        else leaf
        for leaf in leaves
    ]


def _seeded(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    torch.manual_seed(5)
    return function(*args, **kwargs)


def _op_of(info: Any) -> Callable[..., Any]:
    return _AS_USERS_WRITE.get(info.name, info.op)


def _forward(info: Any) -> Call:
    op = _op_of(info)

    def forward(args: Any, kwargs: Any, _: int) -> list[Any]:
        return tree_flatten(_seeded(op, args, kwargs))[0]

    return forward


def _inplace(info: Any) -> Call | None:
    """In-place variant: the argument keeps its layout and is returned."""
    if info.inplace_variant is None:
        return None

    def inplace(args: Any, kwargs: Any, _: int) -> list[Any]:
        placements = getattr(args[0], "placements", None)
        result = _seeded(info.inplace_variant, args, kwargs)
        assert result is args[0], "another tensor comes back"
        if info.name not in _RESHAPING:
            assert getattr(args[0], "placements", None) == placements, "the layout has changed"
        return [result]

    return inplace


def _out(info: Any) -> Call | None:
    """Variant with `out=`: the target is laid out like the result, replicated, or sharded."""
    if not info.supports_out:
        return None

    def target_of(result: torch.Tensor, turn: int) -> torch.Tensor:
        target = torch.empty_like(result)
        if not isinstance(target, DTensor) or turn % 3 == 0:
            return target
        axes = target.device_mesh.ndim
        sharded = Shard(turn % target.ndim) if turn % 3 == 2 and target.ndim else Replicate()
        return target.redistribute(placements=[*[Replicate()] * (axes - 1), sharded])

    def out(args: Any, kwargs: Any, turn: int) -> list[Any]:
        with torch.no_grad():
            like = _seeded(info.op, args, kwargs)
            target = tree_map_only(torch.Tensor, lambda t: target_of(t, turn), like)
            if isinstance(target, (list, tuple)):
                target = tuple(target)
            _seeded(info.op, args, {**kwargs, "out": target})
        return tree_flatten(target if _has_dtensors(like) else like)[0]

    return out


def _has_dtensors(values: Any) -> bool:
    return any(isinstance(each, DTensor) for each in tree_flatten(values)[0])


def _backward(info: Any) -> Call | None:
    """Backward variant: the results, and the gradients of all inputs that require them."""
    if not info.supports_autograd:
        return None

    def backward(args: Any, kwargs: Any, _: int) -> list[Any]:
        made = tree_flatten(_seeded(_op_of(info), args, kwargs))[0]
        results = [leaf for leaf in made if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        inputs = [
            leaf
            for leaf in tree_flatten((args, kwargs))[0]
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        weights = [derivatives.weight(leaf) for leaf in results]
        grads = torch.autograd.grad(results, inputs, weights, allow_unused=True)
        return [leaf.detach() for leaf in results] + list(grads)

    return backward


def _derivatives(derive: Callable[..., Any]) -> Callable[[Any], Call | None]:
    def call_of(info: Any) -> Call | None:
        if not info.supports_autograd:
            return None

        def call(args: Any, kwargs: Any, turn: int) -> list[Any]:
            op = partial(_seeded, _op_of(info))
            return derivatives.of_operator(op, args, kwargs, derive, turn)

        return call

    return call_of


_CALLS: dict[str, Callable[[Any], Call | None]] = {
    "forward": _forward,
    "inplace": _inplace,
    "out": _out,
    "backward": _backward,
    **{name: _derivatives(derive) for name, derive in derivatives.BY_NAME.items()},
}
