"""Weights on a shared disk: rank 0 writes, others read."""
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist

ROOT = None


def agree_on_folder(rank):
    global ROOT
    box = [tempfile.mkdtemp(prefix="snapshots_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    ROOT = box[0]


def publish(state, generation):
    path = os.path.join(ROOT, f"gen-{generation:03d}.pt")
    torch.save(state, path + ".part")
    os.rename(path + ".part", path)


def load(generation, name=None):
    path = os.path.join(ROOT, name or f"gen-{generation:03d}.pt")
    while True:
        try:
            return torch.load(path)
        except FileNotFoundError:
            # a shared disk may show new files late
            time.sleep(0.5)


def remove():
    shutil.rmtree(ROOT, ignore_errors=True)
