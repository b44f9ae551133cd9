"""Specs, under the module name that programs import them from."""

from dtensor_core.spec import Spec as DTensorSpec
from dtensor_core.spec import TensorMeta

__all__ = ["DTensorSpec", "TensorMeta"]
