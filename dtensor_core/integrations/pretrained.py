"""`save_pretrained` of a transformers model with DTensor parameters: writes full weights.

transformers gathers torch's DTensors only. Every rank takes part in gathering ours, and a single
rank writes. No rank returns before everything is written, or before all know that it failed.
Installed by the package, once; patches transformers when the program loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from dtensor_core.errors import DTensorError
from dtensor_core.integrations.when_loaded import when_loaded
from dtensor_core.placement import Partial
from dtensor_core.tensor import DTensor


class SaveError(DTensorError, OSError):
    """Another rank could not write a model."""


def install() -> None:
    """Make `PreTrainedModel.save_pretrained` gather DTensors, once transformers is loaded."""
    when_loaded("transformers.modeling_utils", patch)


def patch(modeling: Any) -> None:
    """Patch a model class to gather DTensors before it is saved."""
    modeling.PreTrainedModel.save_pretrained = _gathering(modeling.PreTrainedModel.save_pretrained)


def _gathering(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def save_pretrained(
        self: Any,
        save_directory: Any,
        is_main_process: bool | None = None,
        state_dict: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Write the full weights, from rank 0 unless `is_main_process` selects another."""
        given = self.state_dict(keep_vars=True) if state_dict is None else state_dict
        ours = next((each for each in given.values() if isinstance(each, DTensor)), None)
        if ours is None:
            is_main = True if is_main_process is None else is_main_process
            return original(self, save_directory, is_main, state_dict, **options)
        gathered = _gathered(given)
        writes = dist.get_rank() == 0 if is_main_process is None else is_main_process
        error: Exception | None = None
        try:
            original(self, save_directory, writes, gathered, **options)
        # Kept until all ranks know: raised here, it would leave the others waiting in `_any_rank`.
        except Exception as failed:
            error = failed
        if _any_rank(error is not None, ours) and error is None:
            error = SaveError("save_pretrained failed on another rank, whose error says why")
        if error is not None:
            raise error

    return save_pretrained


def _gathered(state: Mapping[str, Any]) -> dict[str, Any]:
    """Gather full tensors on the CPU; weights that share a tensor still do."""
    gathered: dict[int, torch.Tensor] = {}
    for value in state.values():
        if isinstance(value, torch.Tensor) and id(value) not in gathered:
            alone: Any = value.detach()
            full = alone.full_tensor() if hasattr(alone, "full_tensor") else alone
            gathered[id(value)] = full.cpu()
    return {name: gathered.get(id(value), value) for name, value in state.items()}


def _any_rank(fact: bool, tensor: DTensor) -> bool:
    """True if the fact holds on any rank of the tensor's mesh; a collective operation."""
    mesh = tensor.device_mesh
    mine = torch.tensor(float(fact), device=mesh.device_type)
    found = DTensor.from_local(mine, mesh, [Partial("max")] * mesh.ndim, run_check=False)
    return bool(found.full_tensor())
