"""Steepening fronts on an adaptive grid."""
import time

import torch.distributed as dist

from mesh import Mesh
from norms import cell_weight, l2


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = Mesh(rank)
    for step in range(40):
        mesh.regrid(step)
        weight = cell_weight(mesh.field.numel())
        mesh.diffuse()
        norm = l2(mesh.field, weight)
        if rank == 0 and step % 4 == 0:
            print(f"step {step} cells {mesh.field.numel()} norm {norm:.4f}", flush=True)
        time.sleep(0.12)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
