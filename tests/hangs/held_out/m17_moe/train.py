"""Mixture of experts with one expert per rank; tokens travel by all_to_all."""
import torch
import torch.distributed as dist
from torch import nn

from moe import ExpertLayer


def reduce_gate(layer):
    for p in layer.gate.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def tokens(rank, step):
    g = torch.Generator().manual_seed(50 * step + rank)
    x = torch.randn(12, 8, generator=g)
    if step >= 6 and rank == 2:
        x = x.abs() * torch.tensor([1.0] * 4 + [-1.0] * 4)
    return x


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    layer = ExpertLayer(8, rank, world)
    opt = torch.optim.SGD(layer.parameters(), lr=0.01)
    for step in range(12):
        x = tokens(rank, step)
        out = layer(x)
        loss = (out - x.flip(1)).square().mean()
        opt.zero_grad()
        loss.backward()
        reduce_gate(layer)
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f} load {layer.load.tolist()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
