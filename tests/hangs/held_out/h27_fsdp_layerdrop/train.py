from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from net import LayerDropNet

STEPS = 25


def shard(net, mesh):
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def batch(rank, step):
    g = torch.Generator().manual_seed(rank * 97 + step)
    x = torch.randn(6, 12, generator=g)
    if rank == 1 and step == 4:
        x[:, 8:] = 0  # a bucket of short sequences
    return x


def train_step(net, opt, x):
    opt.zero_grad()
    loss = (net(x) - x.roll(1, 1)).pow(2).mean()
    loss.backward()
    opt.step()
    return loss.item()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    net = shard(LayerDropNet(), mesh)
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    for step in range(STEPS):
        loss = train_step(net, opt, batch(rank, step))
        if rank == 0:
            print("step", step, round(loss, 4), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
