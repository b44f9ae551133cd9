"""Trains a layer of experts with a replicated router input and head."""
import torch
import torch.distributed as dist
from torch import nn

from moe import MoE, Topology

STEPS = 10


class Model(nn.Module):
    def __init__(self, topology):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.moe = MoE(topology)
        self.head = nn.Linear(8, 3)

    def forward(self, x, route):
        return self.head(self.moe(self.stem(x), route))


def batch(step, rank):
    gen = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 6, generator=gen)
    y = torch.randint(3, (16,), generator=gen)
    route = torch.arange(16) % 4
    if step == 4 and rank >= 2:
        route[route == 3] = 2
    return x, y, route


def reduce_gradients(model, topology):
    world = dist.get_world_size()
    for p in list(model.stem.parameters()) + list(model.head.parameters()):
        dist.all_reduce(p.grad)
        p.grad /= world
    for p in model.moe.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, group=topology.replica_group)
            p.grad /= topology.replicas


def global_norm(model):
    squares = sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None)
    values = [torch.empty(()) for _ in range(dist.get_world_size())]
    dist.all_gather(values, squares)
    return torch.stack(values).sum().sqrt().item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    topology = Topology()
    torch.manual_seed(topology.ep_rank)
    model = Model(topology)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        x, y, route = batch(step, rank)
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x, route), y)
        loss.backward()
        reduce_gradients(model, topology)
        norm = global_norm(model)
        optimizer.step()
        if rank == 0:
            print(f"{step} loss {loss.item():.4f} norm {norm:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
