"""Base class of parallel styles, and conversion of tensors to their layouts.

A style declares the layout in which tensors arrive (`input_layouts`; a plain tensor is treated as
the local part in this layout) and the layout that the module needs. If the two differ, the tensor
is redistributed on the way in or out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import nn

from dtensor_core.errors import DTensorError
from dtensor_core.mesh import DeviceMesh
from dtensor_core.placement import Placement
from dtensor_core.tensor import DTensor
from dtensor_core.validation import normalize_placements

Layouts = tuple[Placement, ...]


class StyleError(DTensorError, AssertionError):
    """Arguments of a style contradict each other."""


class StyleInputError(DTensorError, ValueError):
    """Inputs or outputs of a module are not as its style expects."""


class UnsupportedModuleError(DTensorError, NotImplementedError):
    """A style does not support the module it was applied to."""


class ParallelStyle(ABC):
    """Parallelization of a module; subclasses define `_apply`."""

    src_data_rank: int | None = 0
    """The rank whose parameters all ranks get, set by `parallelize_module`; None: each keeps its
    own.
    """

    @abstractmethod
    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Parallelize the module over the mesh, in place, and return it."""


def as_dtensor(tensor: torch.Tensor, mesh: DeviceMesh, layouts: Sequence[Placement]) -> DTensor:
    """Return a DTensor unchanged, or wrap a plain tensor as the local part of a DTensor."""
    if isinstance(tensor, DTensor):
        return tensor
    return DTensor.from_local(tensor, mesh, layouts, run_check=False)


def brought_to(tensor: DTensor, layouts: Sequence[Placement]) -> DTensor:
    """Redistribute a tensor to another layout, if it does not have it already.

    On an accelerator this is asynchronous, until the first use of the result. On a CPU the next
    operator usually uses it, and asynchronous bookkeeping costs more than the overlap gains.
    """
    placements = tensor.placements
    if placements == layouts:  # usually, and then there is nothing to normalize
        return tensor
    mesh = tensor.device_mesh
    if placements == normalize_placements(layouts, mesh, tensor.ndim):
        return tensor
    return tensor.redistribute(placements=layouts, async_op=mesh.device_type != "cpu")


def local_if(tensor: DTensor, use_local: bool) -> torch.Tensor:
    """Return the local tensor, or the DTensor itself."""
    return tensor.to_local() if use_local else tensor
