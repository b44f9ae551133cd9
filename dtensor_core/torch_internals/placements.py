"""torch's placements: C++ classes, which can be recognized without importing its DTensor."""

from torch._C._distributed import (  # pyright: ignore[reportMissingModuleSource]
    Partial,
    Replicate,
    Shard,
    StridedShard,
)

__all__ = ["Partial", "Replicate", "Shard", "StridedShard"]
