"""Tensor parallelism for modules: styles that shard a module, and plans of styles."""

from dtensor_core.parallel import style
from dtensor_core.parallel.api import parallelize_module
from dtensor_core.parallel.ddp import install as _install_in_ddp
from dtensor_core.parallel.loss import loss_parallel
from dtensor_core.parallel.pretrained import parallelize_pretrained
from dtensor_core.parallel.style import *  # noqa: F403  # all styles, as they are listed there

_install_in_ddp()

__all__ = ["loss_parallel", "parallelize_module", "parallelize_pretrained"]
__all__ += style.__all__


def __dir__() -> list[str]:
    return list(__all__)
