"""torch's results when every intermediate number moves to a neighbour: the effect of rounding.

This is Monte Carlo arithmetic (Parker 1997) at the granularity of an operator: the arguments and
the results of each operator move at random to the next larger or smaller number of their dtype.
Ranks that sum up their parts also round the results of operators in another way.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from dtensor_core.operators.kernels.local_operator import with_lazy_bits


class Nudging(TorchDispatchMode):
    """Perturb the results of operators, except views and in-place writes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = torch.Generator().manual_seed(seed)

    def nudged(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move each number, or part of a complex number, to a neighbour.

        Keeps 0, 1 and -1, which serve as labels, masks and constants, and the zeros and shapes of
        forward-mode differentiation, which have no memory.
        """
        is_number = tensor.is_floating_point() or tensor.is_complex()
        has_no_memory = tensor._is_zerotensor() or tensor.is_meta
        if not is_number or has_no_memory or tensor.layout is not torch.strided:
            return tensor
        full = tensor.detach().resolve_conj().resolve_neg()
        parts = torch.view_as_real(full) if tensor.is_complex() else full
        signs = torch.randint(2, parts.shape, generator=self._chance) * 2.0 - 1.0
        moved = parts.nextafter((signs * math.inf).to(parts.dtype))
        moved = torch.where((parts == 0) | (parts.abs() == 1), parts, moved)
        moved = torch.view_as_complex(moved) if tensor.is_complex() else moved
        return moved.requires_grad_(tensor.requires_grad)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = with_lazy_bits(func)(*args, **(kwargs or {}))
        if any(each.alias_info is not None for each in func._schema.returns):
            return made
        return tree_map_only(torch.Tensor, self.nudged, made)
