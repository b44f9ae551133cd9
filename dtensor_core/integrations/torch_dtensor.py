"""Refusal of our DTensors in operators of torch's DTensor, where they would count as plain.

torch treats plain tensors of a single element as replicated. With our DTensor, the result would be
a torch DTensor that wraps ours, with a wrong value. Installed by the package, once; patches torch's
dispatcher when the program loads it.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from dtensor_core.errors import MixedTensorError
from dtensor_core.integrations.when_loaded import when_loaded
from dtensor_core.tensor import DTensor

_DISPATCHER = "torch.distributed.tensor._dispatch"


def install() -> None:
    """Make torch's dispatcher refuse our DTensors, once it is loaded."""
    when_loaded(_DISPATCHER, patch)


def patch(module: Any) -> None:
    """Refuse our DTensors among the plain tensors of an operator on torch's."""
    dispatcher = module.OpDispatcher
    original = dispatcher._try_replicate_spec_for_scalar_tensor

    @wraps(original)
    def spec_of_number(self: Any, op: Any, tensor: Any, mesh: Any) -> Any:
        if isinstance(tensor, DTensor):
            raise MixedTensorError(
                f"{op} of a DTensor of torch and a DTensor of dtensor_core",
                found=tensor._spec.text,
                why="torch's DTensor is the first argument, so torch dispatches the call",
                hint="pass the DTensor of dtensor_core first, or its full_tensor()",
            )
        return original(self, op, tensor, mesh)

    dispatcher._try_replicate_spec_for_scalar_tensor = spec_of_number
