"""Elements that a mask selects in order, assigned to ranks by how many precede them.

The mask is replicated; each rank finds the positions of its own elements in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.errors import OutOfRangeError
from dtensor_core.operators.kernels.local_operator import Local
from dtensor_core.spec import Spec
from dtensor_core.tracing import is_at_hand


def _places(mask: torch.Tensor, spec: Spec) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return this rank's part of the mask, the positions of its elements, and the total count."""
    mask = mask.expand(spec.shape)
    counted = mask.flatten().cumsum(0)
    here, place = spec.part_of(mask), spec.part_of((counted - 1).view(spec.shape))
    return here, place, counted[-1:]


def scattering(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Make the operator that writes elements of the source where the mask is true."""
    spec = outputs[0]
    if spec is None or spec.num_shards == 1:
        return op
    in_place = op._schema.is_mutable  # pyright: ignore[reportFunctionMemberAccess]

    def scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        here, place, count = _places(mask, spec)
        if is_at_hand(mask) and int(count) > source.numel():
            raise OutOfRangeError("Number of elements of source < number of ones in mask")
        if not source.numel():
            return x if in_place else x.clone()
        taken = source.reshape(-1)[torch.where(here, place, 0)]
        made = torch.where(here, taken, x)
        return x.copy_(made) if in_place else made

    return scatter


def gathering(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """Make the gradient of the source: this rank's elements, and zeros elsewhere."""
    given = inputs[0]
    if given.local_shape == tuple(given.shape):
        return op

    def gather(grad: torch.Tensor, mask: torch.Tensor, sizes: Sequence[Any]) -> torch.Tensor:
        here, place, _ = _places(mask, given)
        count = math.prod(sizes)
        made = grad.new_zeros(count + 1)
        made[torch.where(here, place, count)] = grad
        return made[:count].reshape(sizes)

    return gather
