"""Full checkpoints of a tensor-parallel model, one file per rank (local disks)."""
import os
import shutil
import tempfile

import torch
from torch.distributed.tensor import DTensor


LOCAL_DISK = tempfile.mkdtemp(prefix="tpjob_")


def workdir(rank):
    base = os.path.join(LOCAL_DISK, f"node{rank}")
    os.makedirs(base, exist_ok=True)
    return base


def seed_leftovers(rank):
    """What an earlier, interrupted attempt left on the local disk of one node."""
    if rank == 2:
        torch.save({"step": 4}, os.path.join(workdir(rank), "full_4.pt"))


def gather_full(model):
    full = {}
    for name, param in model.named_parameters():
        full[name] = param.full_tensor() if isinstance(param, DTensor) else param.detach()
    return full


def save_full(model, step, rank):
    path = os.path.join(workdir(rank), f"full_{step}.pt")
    if os.path.exists(path):
        return path
    state = gather_full(model)
    torch.save({"step": step, "model": state}, path)
    return path


def cleanup():
    shutil.rmtree(LOCAL_DISK, ignore_errors=True)
