"""DTensors and their constructors, under the module name that programs import them from."""

from dtensor_core.api import distribute_module, distribute_tensor
from dtensor_core.factories import empty, full, ones, rand, randn, zeros
from dtensor_core.tensor import DTensor

__all__ = [
    "DTensor",
    "distribute_module",
    "distribute_tensor",
    "empty",
    "full",
    "ones",
    "rand",
    "randn",
    "zeros",
]
