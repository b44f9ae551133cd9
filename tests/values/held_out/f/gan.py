"""A generator and a discriminator in DistributedDataParallel, with two optimizers and a gradient scaler."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "ddp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--verify", action="store_true")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
NOISE, WIDTH, BATCH, CLASSES = 12, 24, 24, 5


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.label = nn.Embedding(CLASSES, NOISE)
        self.input = nn.Linear(2 * NOISE, WIDTH * 4)
        self.norm = nn.GroupNorm(4, WIDTH)
        self.conv1 = nn.Conv2d(WIDTH, WIDTH, 3, 1, 1)
        self.conv2 = nn.Conv2d(WIDTH, 3, 3, 1, 1)

    def forward(self, noise, label):
        x = self.input(torch.cat([noise, self.label(label)], 1)).view(-1, WIDTH, 2, 2)
        x = F.interpolate(F.silu(self.norm(x)), scale_factor=2)
        x = F.interpolate(F.silu(self.conv1(x)), scale_factor=2)
        return torch.tanh(self.conv2(x))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTH, 3, 2, 1)
        self.conv2 = nn.Conv2d(WIDTH, WIDTH, 3, 2, 1)
        self.norm = nn.GroupNorm(4, WIDTH)
        self.label = nn.Embedding(CLASSES, WIDTH)
        self.output = nn.Linear(WIDTH, 1)

    def forward(self, x, label):
        x = F.leaky_relu(self.conv1(x), 0.2)
        x = F.leaky_relu(self.norm(self.conv2(x)), 0.2).mean((2, 3))
        return self.output(x).squeeze(1) + (x * self.label(label)).mean(1)


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen, self.disc = Generator(), Discriminator()


def batch(step, rank, world):
    g = torch.Generator().manual_seed(170 + step)
    label = torch.randint(0, CLASSES, (BATCH,), generator=g)
    real = torch.tanh(torch.randn(BATCH, 3, 8, 8, generator=g) + label.view(-1, 1, 1, 1) / 3 - 0.6)
    noise = torch.randn(2, BATCH, NOISE, generator=g)  # for the discriminator's and the generator's turn
    rows = torch.arange(BATCH).chunk(world)[rank]
    drawn = rows % len(rows) if args.mutant == "same_noise" else rows
    return real[rows].to(DTYPE), label[rows], noise[:, drawn].to(DTYPE)  # @same_noise


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(8)
    gan = GAN().to(DTYPE)
    gen, disc = gan.gen, gan.disc
    if args.layout == "ddp":
        gen, disc = DistributedDataParallel(gan.gen), DistributedDataParallel(gan.disc, broadcast_buffers=False)
    opt_g = torch.optim.Adam(gan.gen.parameters(), lr=4e-3, betas=(0.5, 0.9), eps=1e-4)
    opt_d = torch.optim.SGD(gan.disc.parameters(), lr=0.1, momentum=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(3):
        real, label, noise = batch(step, rank, world)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
            fake = gen(noise[0], label).detach()  # @same_noise
            both = disc(torch.cat([real.to(fake.dtype), fake]), label.repeat(2))
            on_real, on_fake = both.chunk(2)
            loss_d = F.softplus(-on_real).mean() + F.softplus(on_fake).mean()
        if args.mutant != "disc_dirty":
            opt_d.zero_grad()  # the generator's turn has left gradients
        scaler.scale(loss_d).backward()  # @disc_dirty
        if args.mutant != "clip_scaled":
            scaler.unscale_(opt_d)
        torch.nn.utils.clip_grad_norm_(gan.disc.parameters(), 0.5)  # @clip_scaled
        scaler.step(opt_d)  # @clip_scaled @disc_dirty
        with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
            loss_g = F.softplus(-gan.disc(gen(noise[1], label), label)).mean()
        opt_g.zero_grad()
        scaler.scale(loss_g).backward()
        scaler.step(opt_g)
        scaler.update()
        losses = torch.stack([loss_d.detach().float(), loss_g.detach().float()])
        dist.all_reduce(losses)
        if rank == 0:
            print(f"step {step} discriminator {losses[0].item() / world:.7f} loss {losses[1].item() / world:.7f}", flush=True)
    if args.verify and rank == 0:
        print(f"sum {sum(p.detach().double().abs().sum().item() for p in gan.parameters()):.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
