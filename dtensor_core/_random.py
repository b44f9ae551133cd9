"""Names of `torch.distributed.tensor._random` that programs use; see `dtensor_core.random`."""

from dtensor_core.random import is_rng_supported_mesh, manual_seed

# Programs check whether torch has one; there is none here, as torch's generators are used.
_rng_tracker = None

__all__ = ["is_rng_supported_mesh", "manual_seed"]
