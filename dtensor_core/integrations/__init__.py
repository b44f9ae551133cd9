"""Patches of torch, and of transformers, where they test for torch's own DTensor class.

They cover checkpoints, conditions, fully sharded data parallelism, flexible attention, pipeline
stages, optimizers, gradient clipping, parameters, Python functions that make tensors, saving a
transformers model, and what compiled backwards overwrite. Each module patches what it names once,
when this package is imported or when the program loads that part.
"""

from dtensor_core.integrations import (
    checkpoint,
    conditions,
    donated_buffers,
    export,
    factories,
    flex_attention,
    fsdp,
    optimizers,
    parameters,
    pipelining,
    pretrained,
    torch_dtensor,
)

_PATCHES = (
    checkpoint,
    conditions,
    donated_buffers,
    export,
    factories,
    flex_attention,
    fsdp,
    optimizers,
    parameters,
    pipelining,
    pretrained,
    torch_dtensor,
)


def install() -> None:
    """Install all patches."""
    for each in _PATCHES:
        each.install()
