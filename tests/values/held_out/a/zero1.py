"""ZeRO stage 1 by hand: an optimizer that reduce-scatters a flat gradient and gathers the updated parameters."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class ZeroSGD(torch.optim.Optimizer):
    """SGD with momentum and decoupled decay. Each rank has one part of a flat vector of all parameters in float32."""

    def __init__(self, params, lr, momentum=0.9, decay=0.01, mutant="none"):
        super().__init__(params, dict(lr=lr, momentum=momentum, decay=decay))
        self.mutant, self.steps = mutant, 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.all = [p for group in self.param_groups for p in group["params"]]
        self.sizes = [p.numel() for p in self.all]
        self.padding = -sum(self.sizes) % self.world
        decayed = torch.cat([torch.full((p.numel(),), float(p.dim() > 1)) for p in self.all])
        self.master = self.part(self.flat(p.detach() for p in self.all))
        self.decayed = self.part(F.pad(decayed, (0, self.padding)))
        if mutant == "decay_mask" and self.rank == self.world - 1:
            self.decayed = torch.ones_like(self.decayed)
        self.momentum = torch.zeros_like(self.master)

    def flat(self, tensors):
        return F.pad(torch.cat([t.flatten().to(self.all[0].dtype) for t in tensors]), (0, self.padding))

    def part(self, vector):
        return vector.chunk(self.world)[self.rank].float().clone()

    @torch.no_grad()
    def step(self, closure=None):
        group = self.param_groups[0]
        full = self.flat(p.grad for p in self.all).float()
        grad = torch.empty_like(self.master)
        dist.reduce_scatter_tensor(grad, full)
        if self.mutant != "no_average":
            grad /= self.world
        if self.mutant == "momentum_reset" and self.steps == 2 and self.rank == 1:
            self.momentum.zero_()
        self.momentum.mul_(group["momentum"]).add_(grad)
        self.master.mul_(1 - group["lr"] * group["decay"] * self.decayed)
        self.master.add_(self.momentum, alpha=-group["lr"])
        parts = [torch.empty_like(self.master) for _ in range(self.world)]
        dist.all_gather(parts, self.master)
        if self.mutant == "gather_order" and self.steps >= 1:
            parts = parts[:-2] + [parts[-1], parts[-2]]
        whole = torch.cat(parts)[: sum(self.sizes)]
        for p, new in zip(self.all, whole.split(self.sizes)):
            p.copy_(new.view_as(p))
        self.steps += 1


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token = nn.Sequential(nn.Linear(tokens, 24), nn.GELU(), nn.Linear(24, tokens))
        self.channel = nn.Sequential(nn.Linear(dim, 48), nn.GELU(), nn.Linear(48, dim))

    def forward(self, x):
        x = x + self.token(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, tokens=16, patch=12, dim=24):
        super().__init__()
        self.patch = nn.Linear(patch, dim)
        self.blocks = nn.ModuleList(MixerBlock(tokens, dim) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 8)

    def forward(self, x):
        x = self.patch(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def train(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    dtype = getattr(torch, args.dtype)
    torch.manual_seed(21)
    model = Mixer().to(dtype)
    optimizer = ZeroSGD(model.parameters(), lr=0.1, mutant=args.mutant)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 2))
    for step in range(3):
        g = torch.Generator().manual_seed(step)
        x, y = torch.randn(16, 16, 12, generator=g).to(dtype), torch.randint(8, (16,), generator=g)
        x, y = x.chunk(world)[rank], y.chunk(world)[rank]
        for i in range(args.micro):
            loss = F.cross_entropy(model(x.chunk(args.micro)[i]).float(), y.chunk(args.micro)[i]) / args.micro
            loss.backward()
        optimizer.step()
        warmup.step()
        optimizer.zero_grad()
    with torch.no_grad():
        g = torch.Generator().manual_seed(99)
        loss = F.cross_entropy(model(torch.randn(8, 16, 12, generator=g).to(dtype)).float(), torch.arange(8))
    weights = sum((p.double() * torch.arange(p.numel()).view_as(p).sin()).sum() for p in model.parameters())
    print(f"FINAL {rank} {loss.item():.6f} {weights.item():.5f}\n", end="", flush=True)


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--layout", default="one", help="one or zero")
    cli.add_argument("--mutant", default="none")
    cli.add_argument("--dtype", default="float32")
    cli.add_argument("--micro", type=int, default=1)
    options = cli.parse_args()
    dist.init_process_group("gloo")
    train(options)
    dist.barrier()
    dist.destroy_process_group()
