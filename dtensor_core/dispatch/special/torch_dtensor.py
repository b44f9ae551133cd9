"""Interoperation with torch's own DTensors, which are adopted as ours without a copy.

A program has both classes if torch's styles parallelized a part of a model, or if modules were
wrapped by FSDP2 before dtensor_core was imported. The local tensor is shared, so an in-place write
affects both. Used by `dispatcher`, for arguments of operators, and by `integrations.optimizers`,
for lists of parameters and gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from dtensor_core.dispatch.arguments import Args, Kwargs, converted
from dtensor_core.errors import MixedTensorError, PlacementError
from dtensor_core.placement import as_placement
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.torch_internals.tensors import new_dtensor

_NAME = ("torch.distributed.tensor", "DTensor")


def is_torch_dtensor(value: Any) -> bool:
    """True for an instance of torch's class, which dtensor_core does not import."""
    kind = type(value)
    return kind is not torch.Tensor and (kind.__module__, kind.__name__) == _NAME


def adopted(value: Any, cls: type[Any]) -> Any:
    """Return our DTensor, of class `cls`, over the local tensor of torch's; other values unchanged.

    Raises:
        MixedTensorError: A placement has no equivalent here.
    """
    if not is_torch_dtensor(value):
        return value
    spec = value._spec
    try:
        placements = tuple(as_placement(each) for each in spec.placements)
    except PlacementError as error:
        raise MixedTensorError(
            "an operator on DTensors of torch and of dtensor_core",
            found=f"a DTensor of torch placed {spec.placements}",
            why=str(error),
            hint="redistribute it first",
        ) from None
    local = value._local_tensor
    local = local.wait() if hasattr(local, "trigger_wait") else local
    meta = TensorMeta(value.shape, value.stride(), value.dtype)
    return new_dtensor(cls, local.detach(), Spec(spec.mesh, placements, meta), requires_grad=False)


def mixes(tensors: Iterable[torch.Tensor], cls: type[Any]) -> bool:
    """True if DTensors of both classes are among the tensors."""
    if _NAME[0] not in sys.modules:
        return False
    kinds = {type(each) for each in tensors}
    return cls in kinds and any((kind.__module__, kind.__name__) == _NAME for kind in kinds)


def adopted_arguments(
    args: Args, kwargs: Kwargs, cls: type[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Adopt torch's DTensors among the arguments of an operator; None if there are none."""
    found = False

    def adopt(value: Any) -> Any:
        nonlocal found
        found = found or is_torch_dtensor(value)
        return adopted(value, cls)

    new = converted(torch.Tensor, adopt, args, kwargs)
    return new if found else None
