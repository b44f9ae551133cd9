"""Gradient unscaling: all ranks agree whether any gradient is not finite.

`_amp_foreach_non_finite_check_and_unscale_` divides gradients by the loss scale and records, in a
plain tensor, whether any is infinite or nan. Here that flag is reduced by maximum over the ranks
that hold other shards, with a reduction of one number per mesh axis. Every rank then skips the
same steps. Used by `make_entry`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtensor_core.dispatch.special.foreach import Element
from dtensor_core.mesh import DeviceMesh
from dtensor_core.placement import Partial, Replicate
from dtensor_core.redistribute.execute import Origin, execute
from dtensor_core.redistribute.plan import plan_between
from dtensor_core.spec import Spec, TensorMeta

UNSCALE = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default


def unscaling(elements: Sequence[Element]) -> Callable[..., None]:
    """Make the function that runs on the local gradients, the flag and the inverse scale."""
    reductions = [_reduction(mesh, axes) for mesh, axes in _sharded_axes(elements).items()]
    origin = Origin(str(UNSCALE), "found_inf")

    def local(gradients: list[torch.Tensor], found: torch.Tensor, scale: torch.Tensor) -> None:
        UNSCALE(gradients, found, scale)
        for pending, plan in reductions:
            found.copy_(execute(found, pending, plan, origin))

    return local


def _sharded_axes(elements: Sequence[Element]) -> dict[DeviceMesh, set[int]]:
    """Return the axes of every mesh along which ranks hold different parts of a gradient."""
    axes: dict[DeviceMesh, set[int]] = {}
    for element in elements:
        spec = element.decision.inputs[0]
        found = axes.setdefault(spec.mesh, set())
        found.update(a for a, each in enumerate(spec.placements) if not each.is_replicate())
    return axes


def _reduction(mesh: DeviceMesh, axes: set[int]) -> tuple[Spec, Any]:
    """Return the flag as a pending maximum along some axes, and the plan that reduces it."""
    meta = TensorMeta(torch.Size(()), (), torch.float32)
    placements = [Partial("max") if axis in axes else Replicate() for axis in range(mesh.ndim)]
    pending = Spec(mesh, placements, meta)
    return pending, plan_between(pending, pending.replicated())
