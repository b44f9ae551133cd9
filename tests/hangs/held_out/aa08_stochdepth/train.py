import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from layers import ResidualBranch, StochasticDepth


def seed_everything(seed, rank):
    torch.manual_seed(seed + rank)       # different augmentation on each rank


class Net(nn.Module):
    def __init__(self, dim=10, depth=3, drop=0.2):
        super().__init__()
        self.layers = nn.ModuleList(
            StochasticDepth(ResidualBranch(dim), drop * (i + 1) / depth) for i in range(depth))
        self.head = nn.Linear(dim, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def flat_sync(model):
    params = list(model.parameters())
    flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in params])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, g in zip(params, flat.split([p.numel() for p in params])):
        p.grad = g.view_as(p).clone()


def augment(x):
    return x + 0.05 * torch.randn_like(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=29)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = Net()
    seed_everything(args.seed, rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        x = augment(torch.randn(16, 10))
        y = x[:, :4].argmax(1)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        flat_sync(model)
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
