"""Names of `torch.distributed.tensor.experimental._attention` that programs use."""

from dtensor_core.experimental.attention import (
    _cp_options,
    context_parallel,
    context_parallel_unshard,
    set_rotate_method,
)

__all__ = ["_cp_options", "context_parallel", "context_parallel_unshard", "set_rotate_method"]
