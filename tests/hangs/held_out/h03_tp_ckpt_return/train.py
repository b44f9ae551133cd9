"""Tensor-parallel MLP."""
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import checkpoint


class MLP(nn.Module):
    def __init__(self, dim=16, hidden=32):
        super().__init__()
        self.up = nn.Linear(dim, hidden, bias=False)
        self.act = nn.GELU()
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Net(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(MLP() for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def shard(net, mesh):
    plan = {}
    for i in range(len(net.layers)):
        plan[f"layers.{i}.up"] = ColwiseParallel()
        plan[f"layers.{i}.down"] = RowwiseParallel()
    return parallelize_module(net, mesh, plan)


def train_step(net, opt, step):
    torch.manual_seed(step)
    x = torch.randn(8, 16)
    out = net(x)
    loss = (out - x.roll(1, 0)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(1)
    net = shard(Net(), mesh)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    checkpoint.seed_leftovers(rank)
    for step in range(12):
        loss = train_step(net, opt, step)
        if rank == 0:
            print(step, round(loss, 4), flush=True)
        if step and step % 4 == 0:
            checkpoint.save_full(net, step, rank)
    dist.barrier()
    checkpoint.cleanup()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
