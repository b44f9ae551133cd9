"""Directional smoothing of a plane on a two-dimensional mesh of ranks."""
import time

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from patch import Patch


def energy(patch):
    total = patch.plane.square().mean().reshape(1)
    dist.all_reduce(total)
    return total.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("x", "y"))
    patch = Patch(mesh, rank)
    for step in range(50):
        patch.wave(step)
        axis = patch.smooth()
        value = energy(patch)
        if rank == 0 and step % 3 == 0:
            print(f"{step}: {axis} {value:.4f}", flush=True)
        time.sleep(0.12)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
