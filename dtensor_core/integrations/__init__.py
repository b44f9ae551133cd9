"""Patches of torch, and of transformers, where they test for torch's own DTensor class.

They cover checkpoints, conditions, fully sharded data parallelism, flexible attention, pipeline
stages, optimizers, gradient clipping, parameters, Python functions that make tensors, saving a
transformers model, and what inductor overwrites. Each module patches what it names once,
when this package is imported or when the program loads that part.
"""

from dtensor_core.integrations import (
    checkpoint,
    cond,
    export,
    factories,
    flex_attention,
    fsdp,
    inductor,
    optimizers,
    parameters,
    pipelining,
    pretrained,
    torch_dtensor,
)

_PATCHES = (
    checkpoint,
    cond,
    export,
    factories,
    flex_attention,
    fsdp,
    inductor,
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
