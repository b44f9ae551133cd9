"""Tensor parallelism for modules: styles that say how one module is cut, and plans of styles."""

from dtensor_core.parallel.api import parallelize_module
from dtensor_core.parallel.base import ParallelStyle
from dtensor_core.parallel.ddp import install as _install_in_ddp
from dtensor_core.parallel.layers import ColwiseParallel, RowwiseParallel, SequenceParallel
from dtensor_core.parallel.loss import loss_parallel
from dtensor_core.parallel.prepare import (
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
)

_install_in_ddp()

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
