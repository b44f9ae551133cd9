"""`local_map`: applies a function written for local tensors to the local parts of DTensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import torch

from dtensor_core.errors import PlacementError
from dtensor_core.mesh import DeviceMesh
from dtensor_core.placement import Placement
from dtensor_core.tensor import DTensor
from dtensor_core.torch_internals.trees import tree_flatten, tree_unflatten
from dtensor_core.validation import normalize_placements

Layout = Sequence[Placement] | None


class LocalMapError(PlacementError, AssertionError):
    """Placements that do not fit the arguments or results of a function."""


def local_map(
    func: Callable[..., Any] | None = None,
    out_placements: Layout | tuple[Layout, ...] = None,
    in_placements: Sequence[Layout] | None = None,
    in_grad_placements: Sequence[Layout] | None = None,
    device_mesh: DeviceMesh | None = None,
    *,
    redistribute_inputs: bool = False,
) -> Callable[..., Any]:
    """Wrap a function of local tensors as a function of DTensors.

    The function gets the local tensors of DTensor arguments, and its results become DTensors.
    Keyword arguments are passed in their own layout. Without any DTensor argument, the function
    runs unchanged.

    Args:
        func: The function; without it, a decorator is returned.
        out_placements: The placements of the result, or a tuple with an entry per flattened result;
            None for a result that is not a tensor.
        in_placements: One entry per flattened positional argument: the placements that a DTensor
            must have, or None for anything else.
        in_grad_placements: The placements of the gradients of local arguments, in the same form.
        device_mesh: The mesh; by default the first DTensor's.
        redistribute_inputs: Redistribute arguments with other placements, instead of raising.

    Raises:
        LocalMapError: Entries do not fit their arguments or results (an AssertionError).
        PlacementError: An argument has other placements (a ValueError).
    """
    if func is None:
        return partial(
            local_map,
            out_placements=out_placements,
            in_placements=in_placements,
            in_grad_placements=in_grad_placements,
            device_mesh=device_mesh,
            redistribute_inputs=redistribute_inputs,
        )
    name = getattr(func, "__name__", repr(func))

    @wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        flat, structure = tree_flatten(args)
        flat_kwargs, kwargs_structure = tree_flatten(kwargs)
        mesh = device_mesh
        for each in (*flat, *flat_kwargs):
            if isinstance(each, DTensor):
                mesh = mesh or each.device_mesh
        is_distributed = any(isinstance(each, DTensor) for each in (*flat, *flat_kwargs))
        wanted = _one_each(in_placements, flat, f"in_placements of {name}")
        grads = _one_each(in_grad_placements, flat, f"in_grad_placements of {name}")
        local = [
            _local(value, layout, grad, f"argument {number} of {name}", redistribute_inputs)
            for number, (value, layout, grad) in enumerate(zip(flat, wanted, grads, strict=True))
        ]
        local_kwargs = [_local(value, None, None, name, False) for value in flat_kwargs]
        result = func(
            *tree_unflatten(local, structure), **tree_unflatten(local_kwargs, kwargs_structure)
        )
        if not is_distributed or mesh is None:
            return result
        return _wrapped(result, out_placements, mesh, name)

    return mapped


def _one_each(layouts: Sequence[Layout] | None, values: Sequence[Any], what: str) -> list[Layout]:
    if layouts is None:
        return [None] * len(values)
    if len(layouts) != len(values):
        raise LocalMapError(
            f"{what} must have an entry for each flattened argument: {len(values)}, "
            f"got {len(layouts)}"
        )
    for number, (value, layout) in enumerate(zip(values, layouts, strict=True)):
        if isinstance(value, DTensor) and layout is None:
            raise LocalMapError(
                f"{what}: argument {number} is a DTensor {value._spec.text}, which expects "
                "placements but received None"
            )
        if not isinstance(value, torch.Tensor) and layout is not None:
            raise LocalMapError(
                f"{what}: argument {number} is a {type(value).__name__}, which expects None "
                f"placements but received {layout}"
            )
    return list(layouts)


def _local(value: Any, layout: Layout, grad: Layout, what: str, redistribute: bool) -> Any:
    """Return the local tensor of an argument, redistributed to `layout`; other values unchanged."""
    if not isinstance(value, DTensor):
        return value
    if layout is not None:
        target = normalize_placements(layout, value.device_mesh, value.ndim)
        if target != value.placements:
            if not redistribute:
                raise PlacementError(
                    f"{what} placed {target}",
                    found=f"placements {value.placements}",
                    why="redistribute_inputs is False, so the argument may not be redistributed",
                    hint="redistribute the argument before the call, or set "
                    "redistribute_inputs=True",
                )
            value = value.redistribute(placements=target)
    return value.to_local(grad_placements=grad)


def _wrapped(result: Any, out_placements: Any, mesh: DeviceMesh, name: str) -> Any:
    """Convert the tensors in a result to DTensors."""
    flat, structure = tree_flatten(result)
    layouts = out_placements if _is_per_result(out_placements) else (out_placements,)
    if len(layouts) != len(flat):
        raise LocalMapError(
            f"out_placements of {name} must have an entry for each flattened result: "
            f"{len(flat)}, got {len(layouts)}"
        )
    made = [
        _result(value, layout, mesh, f"result {number} of {name}")
        for number, (value, layout) in enumerate(zip(flat, layouts, strict=True))
    ]
    return tree_unflatten(made, structure)


def _is_per_result(layouts: Any) -> bool:
    """True for a tuple of layouts, False for a single layout."""
    return isinstance(layouts, tuple) and not any(isinstance(p, Placement) for p in layouts)


def _result(value: Any, layout: Layout, mesh: DeviceMesh, what: str) -> Any:
    if isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and layout is not None:
        return DTensor.from_local(value, mesh, layout)
    if layout is not None and not isinstance(value, torch.Tensor):
        raise LocalMapError(
            f"{what} is a {type(value).__name__}: a value that is not a tensor needs placements "
            f"None, got {layout}"
        )
    return value
