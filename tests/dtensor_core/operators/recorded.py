"""Sample calls of every operator that torch's operator database reaches, forward and backward.

The database's samples run under a dispatch mode that keeps the calls of operators with a row: once
with sizes that divide evenly among ranks, once with sizes that leave some rank with less or
nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch.testing._internal import common_methods_invocations
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from dtensor_core.operators import table
from tests.dtensor_core.operators.brute_force import Sample, only_tensors

# Replace torch's sizes 20, 10, 5 and 3, from which most samples are made: three ranks share them
# evenly, also in two blocks. Four ranks share 5 as 2, 2, 1, 0.
_EVEN = {"L": 12, "M": 12, "S": 6, "XS": 3}
# Samples to run per operator, and calls to keep per row and pass.
_NUM_SAMPLES, _NUM_KEPT = 10, 40
# Their results are uninitialized.
_NO_VALUES = ("empty", "resize")


@dataclass(frozen=True)
class _Pass:
    """One pass over the database."""

    sizes: dict[str, int]
    ranks: int
    dtype: torch.dtype
    num_samples: int = _NUM_SAMPLES


_PASSES = (
    _Pass({}, 4, torch.float64),
    _Pass(_EVEN, 3, torch.float64),
    _Pass({}, 4, torch.int64, 2),
    _Pass({}, 4, torch.complex128, 2),
    _Pass({}, 4, torch.bool, 2),
)
_Kinds = dict[Any, Sample]


@cache
def recorded() -> dict[str, list[Sample]]:
    """Return calls by the name of their row, alternating between the passes."""
    passes = [_recorded(each) for each in _PASSES]
    names = dict.fromkeys(name for each in passes for name in each)
    return {name: list(_in_turn([each.get(name, []) for each in passes])) for name in names}


def _in_turn(groups: list[list[Sample]]) -> Iterator[Sample]:
    """Yield the first of every group, then the second of every group, and so on."""
    for each in itertools.zip_longest(*groups):
        yield from (sample for sample in each if sample is not None)


def _recorded(each: _Pass) -> dict[str, list[Sample]]:
    found: dict[str, _Kinds] = {}
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        for name, size in each.sizes.items():
            patch.setattr(common_methods_invocations, name, size)
        for info in common_methods_invocations.op_db:
            if each.dtype in info.supported_dtypes("cpu"):
                _record(info, each, _Recorder(found, each.ranks))
    return {name: _unlike(list(kinds.values())) for name, kinds in found.items()}


def _unlike(samples: list[Sample]) -> list[Sample]:
    """Shuffle the samples, but put those without a dim to shard last."""
    random.Random(0).shuffle(samples)
    return sorted(samples, key=_has_nothing_to_shard)


def _has_nothing_to_shard(sample: Sample) -> bool:
    return all(each.numel() < 2 for each in only_tensors((sample.args, sample.kwargs)))


class _Recorder(TorchDispatchMode):
    """Keeps a copy of the calls whose operator has a row, once for each kind."""

    def __init__(self, found: dict[str, _Kinds], ranks: int) -> None:
        super().__init__()
        self._found, self._ranks = found, ranks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = table.name_of(func)
        if name is not None and not any(each.is_out for each in func._schema.arguments):
            self._keep(name, func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _keep(self, name: str, func: Any, args: Any, kwargs: Any) -> None:
        kinds = self._found.setdefault(name, {})
        if len(kinds) >= _NUM_KEPT:
            return
        leaves = tree_leaves((args, kwargs))
        kind = (func, *(_kind(leaf) for leaf in leaves))
        given = only_tensors(leaves)
        if kind not in kinds and given and all(_ordinary(tensor) for tensor in given):
            args, kwargs = tree_map_only(torch.Tensor, _copy, (args, kwargs))
            values = not any(each in name for each in _NO_VALUES)
            kinds[kind] = Sample(func, tuple(args), kwargs, values, self._ranks)


def _kind(leaf: Any) -> Any:
    return (leaf.ndim, leaf.dtype) if isinstance(leaf, torch.Tensor) else repr(leaf)


def _ordinary(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and tensor.numel() < 10_000


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().clone()


def _record(info: Any, each: _Pass, recorder: _Recorder) -> None:
    """Run an operator's samples, forward and backward where it has a gradient."""
    torch.manual_seed(0)
    wants_grad = info.supports_autograd and each.dtype.is_floating_point
    with contextlib.suppress(Exception):  # samples that torch itself cannot run are skipped
        # `info.sample_inputs` would search for the calling test, which takes milliseconds.
        samples = info.sample_inputs_func(info, "cpu", each.dtype, wants_grad)
        for sample in itertools.islice(samples, each.num_samples):
            with recorder, contextlib.suppress(Exception):
                _run(info, sample)


def _run(info: Any, sample: Any) -> None:
    leaves = only_tensors((sample.input, sample.args, sample.kwargs))
    made = only_tensors(info.op(sample.input, *sample.args, **sample.kwargs))
    results = [each for each in made if each.requires_grad]
    inputs = [each for each in leaves if each.requires_grad]
    if results and inputs:
        weights = [torch.randn_like(each) for each in results]
        torch.autograd.grad(results, inputs, weights, allow_unused=True)
