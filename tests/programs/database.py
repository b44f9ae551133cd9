"""torch's operator database for programs: operators by name, samples by number."""

from __future__ import annotations

import importlib
import operator
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core
from torch.utils._pytree import TreeSpec, tree_flatten

# The OpInfo has a method that bypasses the override of a subclass.
_AS_USERS_WRITE: dict[str, Callable[..., Any]] = {"__getitem__": operator.getitem}
_LARGEST_SAMPLE = 3000
# torch.manual_seed formats a stack for each kind of device that there is not.
_seed = torch.default_generator.manual_seed


class Sampled(NamedTuple):
    """Identifies a leaf of a sample: operator, requested dtype, sample number and leaf number."""

    operator: str
    dtype: torch.dtype
    sample: int
    leaf: int


@lru_cache(maxsize=1)
def operators() -> dict[str, Any]:
    """Return the OpInfos by name; their functions are those that `dtensor_core` has changed."""
    module = importlib.import_module("torch.testing._internal.common_methods_invocations")
    return {f"{info.name} {info.variant_test_name}".strip(): info for info in module.op_db}


@lru_cache(maxsize=4096)
def samples(name: str, dtype: torch.dtype) -> Sequence[tuple[list[Any], TreeSpec]]:
    """Return the flattened samples of an operator without large, sparse or quantised arguments."""
    found: list[tuple[list[Any], TreeSpec]] = []
    _seed(0)
    # Some OpInfos raise half-way.
    with (
        # They look for the test that asks, in a stack whose source files are read for each frame.
        mock.patch.object(common_utils, "extract_test_fn", return_value=None),
        mock.patch.object(core, "extract_test_fn", return_value=None),
        mock.patch.object(torch, "manual_seed", _seed),
        warnings.catch_warnings(),
        suppress(RuntimeError, IndexError, ValueError),
    ):
        warnings.simplefilter("ignore")
        for sample in operators()[name].sample_inputs("cpu", dtype):
            leaves, structure = tree_flatten(((sample.input, *sample.args), sample.kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            if tensors and all(map(_is_ordinary, tensors)):
                found.append((leaves, structure))
    return found


def _is_ordinary(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and tensor.numel() <= _LARGEST_SAMPLE
    )


def sampled(where: Sampled) -> Any:
    """Return a leaf of a sample; a tensor is copied with its strides."""
    leaf = samples(where.operator, where.dtype)[where.sample][0][where.leaf]
    if not isinstance(leaf, torch.Tensor):
        return leaf
    plain = leaf.detach().resolve_conj().resolve_neg()
    if plain.is_contiguous():
        return plain.clone()
    return torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype).copy_(plain)


def op(name: str, *args: Any, **kwargs: Any) -> Any:
    """Run an operator of the database; returns a tensor, or a list if it returns several values.

    Random numbers are drawn from a fixed seed each time.
    """
    info = operators()[name]
    return _flat(_AS_USERS_WRITE.get(name, info.op), args, kwargs)


def op_(name: str, *args: Any, **kwargs: Any) -> Any:
    """Run the operator's in-place form."""
    return _flat(operators()[name].inplace_variant, args, kwargs)


def _flat(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    _seed(5)
    made = function(*args, **kwargs)
    return made if isinstance(made, torch.Tensor) else tree_flatten(made)[0]
