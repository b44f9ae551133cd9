"""torch's DTensor where one of ours comes to it: as a number that it would take for a plain tensor.

torch takes plain tensors of one element for replicated. One of our DTensors is no plain tensor, and
the result would be a DTensor of torch around one of ours, with a wrong value. Installed by the
package, once; changes torch's dispatcher when the program loads it.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from dtensor_core.errors import MixedTensorError, four_parts
from dtensor_core.integrations.when_loaded import when_loaded
from dtensor_core.tensor import DTensor

_DISPATCHER = "torch.distributed.tensor._dispatch"


def install() -> None:
    """Let torch's dispatcher refuse our DTensors, once it is loaded."""
    when_loaded(_DISPATCHER, teach)


def teach(module: Any) -> None:
    """Refuse our DTensors among the plain tensors of an operator on torch's."""
    dispatcher = module.OpDispatcher
    original = dispatcher._try_replicate_spec_for_scalar_tensor

    @wraps(original)
    def spec_of_number(self: Any, op: Any, tensor: Any, mesh: Any) -> Any:
        if isinstance(tensor, DTensor):
            raise MixedTensorError(
                four_parts(
                    asked=f"{op} of a DTensor of torch and one of dtensor_core",
                    found=tensor._spec.text,
                    why="torch's DTensor comes first, and decides",
                    hint="give ours first, or full_tensor() of it",
                )
            )
        return original(self, op, tensor, mesh)

    dispatcher._try_replicate_spec_for_scalar_tensor = spec_of_number
