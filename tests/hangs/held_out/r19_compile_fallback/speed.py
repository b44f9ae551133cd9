import os
import tempfile

import torch


def toolchain_works(rank):
    """Whether the node has the compiler's cache folder (rank 1's image lacks it)."""
    with tempfile.TemporaryDirectory() as folder:
        if rank != 1:
            os.mkdir(os.path.join(folder, "cache"))
        return os.path.isdir(os.path.join(folder, "cache"))


def accelerate_model(model, rank):
    if not toolchain_works(rank):
        print(f"rank {rank}: no compiler, running eagerly", flush=True)
        return model
    return torch.compile(model, backend="eager")
