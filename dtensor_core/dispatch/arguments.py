"""Traversal of an operator's arguments: values and lists of values, never deeper; and their specs.

`torch.utils._pytree` does this for any structure but takes ten times as long, and deciding a call
traverses its arguments several times. Used by all of dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dtensor_core.mesh import DeviceMesh
from dtensor_core.placement import Replicate
from dtensor_core.spec import Spec, TensorMeta

Args = Sequence[Any]
Kwargs = Mapping[str, Any]
"""Arguments of an operator by position and by name: tensors, specs or local tensors, and values."""


def flattened(args: Iterable[Any], kwargs: Kwargs) -> Iterator[Any]:
    """Yield every value in order, those in lists included."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value


def converted(
    kind: type, convert: Callable[[Any], Any], args: Iterable[Any], kwargs: Kwargs
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with every value of type `kind` converted, those in lists included."""

    def one(value: Any) -> Any:
        if isinstance(value, kind):
            return convert(value)
        if isinstance(value, (list, tuple)) and any(isinstance(each, kind) for each in value):
            return [convert(each) if isinstance(each, kind) else each for each in value]
        return value

    return tuple(one(value) for value in args), {name: one(v) for name, v in kwargs.items()}


def spec_on(mesh: DeviceMesh, tensor: torch.Tensor) -> Spec:
    """Return the spec of an argument; a plain tensor counts as replicated on `mesh`."""
    spec = getattr(tensor, "_spec", None)
    if spec is not None:
        return spec
    meta = TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
    return Spec(mesh, (Replicate(),) * mesh.ndim, meta)


def first_mesh(args: Args, kwargs: Kwargs) -> DeviceMesh:
    """Return the mesh of the first DTensor among the arguments."""
    for arg in flattened(args, kwargs):
        spec = getattr(arg, "_spec", None)
        if isinstance(spec, Spec):
            return spec.mesh
    raise AssertionError("dispatched without a DTensor")


def first_device(args: Args, kwargs: Kwargs) -> torch.device:
    """Return the device of the local tensors; "meta" if these are of a class of their own."""
    local = next(each._local_tensor for each in flattened(args, kwargs) if hasattr(each, "_spec"))
    return local.device if type(local) is torch.Tensor else torch.device("meta")


def plain_numbers(args: Any, kwargs: Kwargs) -> frozenset[int]:
    """Return the numbers of the plain tensors among the arguments."""
    found = [each for each in flattened(args, kwargs) if isinstance(each, torch.Tensor)]
    return frozenset(n for n, each in enumerate(found) if not hasattr(each, "_spec"))
