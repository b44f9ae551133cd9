"""`parallelize_module`: a plan of styles, applied to the submodules that its keys name."""

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
    """A plan that is neither a style nor a mapping of names to plans."""


def parallelize_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
    parallelize_plan: ParallelStyle | Mapping[str, Any] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> nn.Module:
    """The module with the plan's styles applied, in place.

    A plan is a style, or maps names of submodules to plans. A name is a path of child names, each
    of which may have wildcards as in `fnmatch` (`"layers.*.w1"`); `""` is the module itself. A
    name that nothing matches warns. The mesh has one axis (of a larger one take a slice,
    `mesh["tp"]`) and defaults to that of the innermost `with mesh:`. Parameters come from the
    rank at coordinate `src_data_rank`; with None each rank keeps its part of its own. A parameter
    that has several names is one afterwards too, under those that no style names as well.

    Raises PlanError (a TypeError) for what is no plan, TiedError (a ValueError) where styles lay
    out one parameter differently.
    """
    mesh = current_mesh(device_mesh)
    if parallelize_plan is None:
        warnings.warn(
            "No parallelize_plan is provided, so parallelize_module does nothing: no plan is made "
            "automatically",
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
                asked=f"a parallelize_plan of type {type(plan).__name__}",
                found=f"{plan!r}",
                why="Expect Union[ParallelStyle, Dict[str, ParallelStyle]] for parallelize_plan",
                hint='{"layers.*.w1": ColwiseParallel()}, for instance',
            )
        )


def _matches(module: nn.Module, name: str) -> list[nn.Module]:
    """The submodules that a plan's key names; warns of each dead end."""
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
