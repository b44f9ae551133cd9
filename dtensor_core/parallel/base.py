"""What every parallel style is, and how styles bring a tensor to a layout.

A style announces in which layout tensors come (`input_layouts`: a plain tensor is taken to be the
local part of that) and in which the module wants them; where the two differ, the tensor is
redistributed on the way in, or on the way out.
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
    """A style whose arguments contradict each other."""


class StyleInputError(DTensorError, ValueError):
    """A module was called with inputs, or gave outputs, that its style did not expect."""


class UnsupportedModuleError(DTensorError, NotImplementedError):
    """A style was given to a module that it does not know how to cut."""


class ParallelStyle(ABC):
    """How one module is parallelized. Subclasses define `_apply`."""

    src_data_rank: int | None = 0
    """Whose parameters all ranks get; None: each keeps its own. `parallelize_module` sets it."""

    @abstractmethod
    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """The module, parallelized over the mesh, in place."""


def as_dtensor(tensor: torch.Tensor, mesh: DeviceMesh, layouts: Sequence[Placement]) -> DTensor:
    """A DTensor as it is; of a plain tensor the DTensor that it is the local part of."""
    if isinstance(tensor, DTensor):
        return tensor
    return DTensor.from_local(tensor, mesh, layouts, run_check=False)


def brought_to(tensor: DTensor, layouts: Sequence[Placement]) -> DTensor:
    """The tensor in another layout; itself where it has it already.

    On an accelerator nobody waits for it before its first use. On a CPU that is the next operator,
    mostly, and telling that it has to wait costs more than what would overlap.
    """
    mesh = tensor.device_mesh
    if tensor.placements == normalize_placements(layouts, mesh, tensor.ndim):
        return tensor
    return tensor.redistribute(placements=layouts, async_op=mesh.device_type != "cpu")


def local_if(tensor: DTensor, use_local: bool) -> torch.Tensor:
    """The local part, or the DTensor itself."""
    return tensor.to_local() if use_local else tensor
