"""A generative adversarial network with two optimizers, data parallel by all_reduce of flat gradients."""
import argparse
import time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


class Generator(nn.Module):
    def __init__(self, noise=16, out=32):
        super().__init__()
        self.project = nn.Linear(noise, 32)
        self.hidden = nn.ModuleList([nn.Linear(32, 32) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(32) for _ in range(2)])
        self.out = nn.Linear(32, out)

    def forward(self, z):
        h = F.leaky_relu(self.project(z), 0.2)
        for layer, norm in zip(self.hidden, self.norms):
            h = F.leaky_relu(norm(layer(h)), 0.2)
        return torch.tanh(self.out(h))


class Discriminator(nn.Module):
    def __init__(self, features=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 64), nn.LeakyReLU(0.2), nn.Linear(64, 32), nn.LeakyReLU(0.2))
        self.score = nn.Linear(32, 1)

    def forward(self, x):
        return self.score(self.net(x)).squeeze(-1)


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = Generator(), Discriminator()


def average_gradients(module, group=None):
    grads = [p.grad for p in module.parameters()]
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat, group=group)  # @g_pairs
    flat /= dist.get_world_size(group)  # @g_pairs
    for g, new in zip(grads, _unflatten_dense_tensors(flat, grads)):
        g.copy_(new)  # @g_pairs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="one", choices=["one", "dp"])
    parser.add_argument("--mutant", default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(31)
    gan = GAN()
    g, d = gan.generator, gan.discriminator
    opt_g = torch.optim.Adam(g.parameters(), lr=0.01, betas=(0.5, 0.99))
    opt_d = torch.optim.RMSprop(d.parameters(), lr=0.005)
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])] if world == 4 else None

    def share(x):
        return x.chunk(world)[rank]

    for step in range(3):
        seeds = torch.Generator().manual_seed(1000 + step)
        real = share(torch.sin(torch.randn(16, 1, generator=seeds) + torch.arange(32) / 5))
        noise_d = share(torch.randn(16, 16, generator=seeds))
        noise_g = share(torch.randn(16, 16, generator=seeds))

        if not (args.mutant == "d_not_zeroed" and step >= 1):
            opt_d.zero_grad()
        fake = g(noise_d).detach()
        loss_d = F.softplus(-d(real)).mean() + F.softplus(d(fake)).mean()
        loss_d.backward()  # @d_not_zeroed
        average_gradients(d)
        opt_d.step()

        opt_g.zero_grad()
        loss_g = F.softplus(-d(g(noise_g))).mean()
        loss_g.backward()
        average_gradients(g, pairs[rank // 2] if args.mutant == "g_pairs" else None)
        if args.mutant == "g_twice_out" and step >= 1:
            dist.all_reduce(g.norms[1].bias.grad)  # @g_twice_out
        opt_g.step()

        shown = torch.stack([loss_d.detach(), loss_g.detach()])
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step} d {shown[0].item() / world:.7f} g {shown[1].item() / world:.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # threads of gloo may need the interpreter once more


if __name__ == "__main__":
    main()
