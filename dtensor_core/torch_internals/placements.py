"""torch's placements, which are classes of C++ and can be told without its DTensor."""

from torch._C._distributed import (  # pyright: ignore[reportMissingModuleSource]
    Partial,
    Replicate,
    Shard,
    StridedShard,
)

__all__ = ["Partial", "Replicate", "Shard", "StridedShard"]
