"""What parts of torch that tell DTensors by torch's own class have to know of ours.

Checkpoints, fully sharded data parallelism, optimizers, the clipping of gradients, parameters,
functions written in Python that make tensors.
Each module changes what it names, once, when this package is imported or when the program loads
that part.
"""

from dtensor_core.integrations import checkpoint, factories, fsdp, optimizers, parameters


def install() -> None:
    """Let those parts of torch know of DTensors."""
    checkpoint.install()
    factories.install()
    fsdp.install()
    optimizers.install()
    parameters.install()
