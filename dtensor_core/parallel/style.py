"""The parallel styles under the module name from which programs written for torch import them."""

from dtensor_core.parallel.base import ParallelStyle
from dtensor_core.parallel.experts import ExpertParallel
from dtensor_core.parallel.layers import (
    ColwiseParallel,
    PackedColwiseParallel,
    PackedRowwiseParallel,
    RowwiseParallel,
    SequenceParallel,
)
from dtensor_core.parallel.local import (
    ExpertTensorParallel,
    LocalParameters,
    ReplicatedForShards,
)
from dtensor_core.parallel.prepare import (
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
)

__all__ = [
    "ColwiseParallel",
    "ExpertParallel",
    "ExpertTensorParallel",
    "LocalParameters",
    "PackedColwiseParallel",
    "PackedRowwiseParallel",
    "ParallelStyle",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "ReplicatedForShards",
    "RowwiseParallel",
    "SequenceParallel",
]
