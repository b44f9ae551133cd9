"""Placements, under the module name that programs import them from."""

from dtensor_core.placement import Partial, Placement, Replicate, Shard, _StridedShard
from dtensor_core.spec import Spec as DTensorSpec
from dtensor_core.spec import TensorMeta

_Partial = Partial

__all__ = [
    "DTensorSpec",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "TensorMeta",
    "_Partial",
    "_StridedShard",
]
