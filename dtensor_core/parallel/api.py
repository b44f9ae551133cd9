"""`parallelize_module`: applies a plan of styles to the submodules that its keys name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

from torch import nn

from dtensor_core.errors import DTensorError, four_parts
from dtensor_core.mesh import DeviceMesh, current_mesh
from dtensor_core.parallel.base import ParallelStyle
from dtensor_core.tied import keeping_ties


class PlanError(DTensorError, TypeError):
    """A plan is neither a style nor a mapping of names to plans."""


def parallelize_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
    parallelize_plan: ParallelStyle | Mapping[str, Any] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> nn.Module:
    """Apply a plan of styles to a module, in place.

    A plan is a style, or a mapping of submodule names to plans. A name is a path of child names,
    which may have wildcards as in `fnmatch` (`"layers.*.w1"`); `""` is the module itself. A name
    without a match warns. A parameter with several names stays tied, also under names that no style
    mentions.

    Args:
        module: The module.
        device_mesh: A 1D mesh (or a 1D slice of a larger mesh, such as `mesh["tp"]`); from the
            innermost `with mesh:` by default.
        parallelize_plan: The plan.
        src_data_rank: The coordinate of the rank whose parameters are distributed; with None each
            rank keeps its part of its own.

    Returns:
        The same module.

    Raises:
        PlanError: The plan is invalid (a TypeError).
        TiedError: Styles lay out the same parameter differently (a ValueError).
    """
    mesh = current_mesh(device_mesh)
    if parallelize_plan is None:
        warnings.warn(
            "No parallelize_plan is provided, so parallelize_module does nothing; plans are not "
            "generated automatically",
            stacklevel=2,
        )
        return module
    with keeping_ties(module):
        _apply(module, mesh, parallelize_plan, src_data_rank)
    return module


def _apply(
    module: nn.Module, mesh: DeviceMesh, plan: ParallelStyle | Mapping[str, Any], source: int | None
) -> None:
    if isinstance(plan, ParallelStyle):
        plan.src_data_rank = source
        plan._apply(module, mesh)
    elif isinstance(plan, Mapping):
        for name, inner in plan.items():
            for submodule in _matches(module, name):
                _apply(submodule, mesh, inner, source)
    else:
        raise PlanError(
            four_parts(
                summary=f"a parallelize_plan of type {type(plan).__name__}",
                found=f"{plan!r}",
                why="Expect Union[ParallelStyle, Dict[str, ParallelStyle]] for parallelize_plan",
                hint='{"layers.*.w1": ColwiseParallel()}, for instance',
            )
        )


def _matches(module: nn.Module, name: str) -> list[nn.Module]:
    """Return the submodules that a plan's key names; warns if a part of the key has no match."""
    found = [module]
    for token in name.split(".") if name else ():
        parents, found = found, []
        for parent in parents:
            found += _children(parent, token, name)
    return found


def _children(parent: nn.Module, token: str, name: str) -> list[nn.Module]:
    children = [child for own_name, child in parent.named_children() if fnmatch(own_name, token)]
    if not children:
        warnings.warn(
            f"Parallelize plan key '{name}' could not be resolved: no submodule matching token "
            f"'{token}' in module {type(parent).__name__}, skipping this plan entry.",
            stacklevel=5,
        )
    return children
