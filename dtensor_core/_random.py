"""The names of `torch.distributed.tensor._random` that programs use; see `dtensor_core.random`."""

from dtensor_core.random import is_rng_supported_mesh, manual_seed

# Programs ask whether torch has one; there is none to have, the generators of torch are used.
_rng_tracker = None

__all__ = ["is_rng_supported_mesh", "manual_seed"]
