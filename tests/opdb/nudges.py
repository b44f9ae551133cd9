"""torch's results where every number along the way goes to a neighbour: what rounding may change.

Monte Carlo arithmetic (Parker 1997), an operator at a time: the numbers of the arguments, and of
what each operator makes of them, each go to the next larger or smaller one of their dtype, as
chance will have it. Ranks that add up their parts round what an operator makes in another way, too.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from dtensor_core.local.operator import with_lazy_bits


class Nudging(TorchDispatchMode):
    """Nudges what operators make, but for views and what is written in place."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = torch.Generator().manual_seed(seed)

    def nudged(self, tensor: torch.Tensor) -> torch.Tensor:
        """Each number, or part of a complex one, is a neighbour of what it was.

        But for 0, 1 and -1, which are what they are: labels, masks, constants.
        """
        kinds = tensor.is_floating_point(), tensor.is_complex()
        if not any(kinds) or tensor.layout is not torch.strided:
            return tensor
        whole = tensor.detach().resolve_conj().resolve_neg()
        parts = torch.view_as_real(whole) if tensor.is_complex() else whole
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
