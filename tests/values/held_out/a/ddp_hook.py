"""A tabular model in DistributedDataParallel with a communication hook, fixed dropout masks and averages of weights."""
import argparse
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class FixedDropout(nn.Module):
    """Variational dropout of features: one mask for the whole run, a static buffer."""

    def __init__(self, dim, p, seed):
        super().__init__()
        keep = torch.rand(dim, generator=torch.Generator().manual_seed(seed)) > p
        self.register_buffer("mask", keep.float() / (1 - p))

    def forward(self, x):
        return x * self.mask if self.training else x


class GatedLayer(nn.Module):
    def __init__(self, dim, seed):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.inner = nn.Linear(dim, 2 * dim)
        self.drop = FixedDropout(dim, 0.25, seed)
        self.outer = nn.Linear(dim, dim)

    def forward(self, x):
        a, b = self.inner(self.norm(x)).chunk(2, -1)
        return x + self.outer(self.drop(a * torch.sigmoid(b)))


class Tabular(nn.Module):
    def __init__(self, columns=20, dim=40, seeds=(1, 2, 3)):
        super().__init__()
        self.embed = nn.Linear(columns, dim)
        self.layers = nn.Sequential(*(GatedLayer(dim, s) for s in seeds))
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        return self.head(self.layers(self.embed(x))).squeeze(-1)


def average_hook(mutant):
    def hook(group, bucket):
        world = dist.get_world_size()
        tensor = bucket.buffer().div_(world)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        index = bucket.index()

        def finish(f):
            result = f.value()[0]
            if mutant == "hook_twice" and index == 1:
                result = result / world
            return result

        return future.then(finish)

    return hook


def update_ema(average, model, decay=0.9):
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters()):
            a.mul_(decay).add_(p, alpha=1 - decay)


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--layout", default="one", choices=["one", "ddp"])
    cli.add_argument("--mutant", default="none")
    cli.add_argument("--ema", action="store_true")
    cli.add_argument("--reload", action="store_true", help="save and load the state in memory after a step")
    args = cli.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(31)
    seeds = (1, 2, 3)
    if args.mutant == "mask_rank":
        seeds = (1, 2 + 10 * (rank == 1), 3)
    model = Tabular(seeds=seeds)
    table = torch.randn(96, 20)
    target = table[:, :5].prod(1) + table[:, 7].sin()
    net = model
    if args.layout == "ddp":
        net = DDP(model, bucket_cap_mb=0.012, broadcast_buffers=False, static_graph=args.ema, init_sync=False)
        net.register_comm_hook(None, average_hook(args.mutant))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    average = copy.deepcopy(model).eval()
    for step in range(3):
        rows = slice(step * 24 + rank * 24 // world, step * 24 + (rank + 1) * 24 // world)
        loss = (net(table[rows]) - target[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if args.mutant == "schedule_rank" and rank == 1:
            schedule.step()
        if args.ema:
            update_ema(average, model)
        if args.reload and step == 0:
            state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
    model.eval()
    with torch.no_grad():
        loss = (model(table[72:]) - target[72:]).square().mean()
        averaged = (average(table[72:]) - target[72:]).square().mean()
    print(f"FINAL {rank} {loss.item():.6f} {averaged.item():.6f}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
