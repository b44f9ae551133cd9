"""Tensor parallel by two, data parallel by two (gradients averaged by hand)."""
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from layers import Stack, tensor_parallel

DIM = 8


def average_over_dp(model, group):
    for p in model.parameters():
        local = p.grad.to_local()
        dist.all_reduce(local, group=group)
        local.div_(dist.get_world_size(group))


def sgd(model, lr):
    with torch.no_grad():
        for p in model.parameters():
            p.to_local().sub_(p.grad.to_local(), alpha=lr)
            p.grad = None


def full_norms(model):
    return [p.full_tensor().norm().item() for p in model.parameters()]


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = tensor_parallel(Stack(DIM, 2), mesh["tp"])
    dp = mesh.get_group("dp")
    replica = mesh.get_local_rank("dp")
    for step in range(10):
        torch.manual_seed(100 * replica + step)
        x = torch.randn(6, DIM)
        loss = (model(x) - x.roll(1, 1)).pow(2).mean()
        loss.backward()
        average_over_dp(model, dp)
        sgd(model, 0.02)
        if step % 3 == 0:
            norms = full_norms(model)
            if dist.get_rank() == 0:
                print(step, round(loss.item(), 4), [round(n, 3) for n in norms], flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
