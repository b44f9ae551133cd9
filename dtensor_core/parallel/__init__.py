"""Tensor parallelism for modules: styles that say how one module is cut, and plans of styles."""

from dtensor_core.parallel.loss import loss_parallel
from dtensor_core.parallel.module import parallelize_module
from dtensor_core.parallel.prepare import (
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
)
from dtensor_core.parallel.style import ParallelStyle
from dtensor_core.parallel.styles import ColwiseParallel, RowwiseParallel, SequenceParallel

__all__ = [
    "ColwiseParallel",
    "ParallelStyle",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "RowwiseParallel",
    "SequenceParallel",
    "loss_parallel",
    "parallelize_module",
]
