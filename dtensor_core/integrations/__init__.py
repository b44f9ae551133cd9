"""Parts of torch, and one of transformers, that tell DTensors by torch's own class, taught ours.

Checkpoints, fully sharded data parallelism, optimizers, the clipping of gradients, parameters,
functions written in Python that make tensors; saving a model of transformers.
Each module changes what it names, once, when this package is imported or when the program loads
that part.
"""

from dtensor_core.integrations import (
    checkpoint,
    factories,
    fsdp,
    optimizers,
    parameters,
    pretrained,
    torch_dtensor,
)


def install() -> None:
    """Let those parts of torch know of DTensors."""
    checkpoint.install()
    factories.install()
    fsdp.install()
    optimizers.install()
    parameters.install()
    pretrained.install()
    torch_dtensor.install()
