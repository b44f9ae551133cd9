"""Training with per-node groups; nodes that fall behind get a helper group."""
import torch
import torch.distributed as dist
from torch import nn

from topology import Topology


def local_sgd_step(model, opt, x):
    loss = (model(x) - x[:, :1]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def average(model, group, size):
    for p in model.parameters():
        dist.all_reduce(p.data, group=group)
        p.data /= size


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    topo = Topology(per_node=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(rank)
    for rnd in range(7):
        loss = 0.0
        for _ in range(8):
            loss = local_sgd_step(model, opt, torch.randn(16, 8, generator=g) * (1 + rank // 2))
        average(model, topo.node_group, topo.per_node)
        topo.refresh(rnd, loss)
        if topo.helpers is not None:
            average(model, topo.helpers, len(topo.members))
        average(model, None, dist.get_world_size())
        if rnd == 4:
            leaders = topo.settle()
            if rank % topo.per_node == 0:
                average(model, leaders, dist.get_world_size() // topo.per_node)
        if rank == 0:
            print(f"round {rnd} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
