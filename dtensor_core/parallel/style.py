"""The parallel styles under one name, as programs written for torch import them."""

from dtensor_core.parallel.base import ParallelStyle
from dtensor_core.parallel.layers import ColwiseParallel, RowwiseParallel, SequenceParallel
from dtensor_core.parallel.prepare import (
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
)

__all__ = [
    "ColwiseParallel",
    "ParallelStyle",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "RowwiseParallel",
    "SequenceParallel",
]
