"""dtensor_core: tensors sharded over a device mesh, with the reason for every communication.

The public names match `torch.distributed.tensor`, so a program moves over by changing its imports.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as _error:
    raise ImportError("dtensor_core needs PyTorch: `pip install torch`") from _error

from dtensor_core.api import distribute_module, distribute_tensor
from dtensor_core.dispatch.special.fallback import MissingRuleWarning, missing_rule
from dtensor_core.factories import empty, full, ones, rand, randn, zeros
from dtensor_core.integrations import install as _install
from dtensor_core.mesh import DeviceMesh, init_device_mesh
from dtensor_core.placement import Partial, Placement, Replicate, Shard, _StridedShard
from dtensor_core.tensor import DTensor

_install()

__all__ = [
    "DTensor",
    "DeviceMesh",
    "MissingRuleWarning",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "_StridedShard",
    "distribute_module",
    "distribute_tensor",
    "empty",
    "full",
    "init_device_mesh",
    "missing_rule",
    "ones",
    "rand",
    "randn",
    "zeros",
]


def __dir__() -> list[str]:
    return list(__all__)
