"""Functions on local tensors, rules of one's own, and plain tensors among DTensors."""

from dtensor_core.dispatch import implicit_replication
from dtensor_core.experimental.local_map import local_map
from dtensor_core.experimental.sharding import register_sharding

__all__ = ["implicit_replication", "local_map", "register_sharding"]
