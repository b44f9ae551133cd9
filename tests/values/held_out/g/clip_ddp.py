"""Two towers with a contrastive loss in DistributedDataParallel: features of all ranks are gathered."""
import argparse
import os
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
parser.add_argument("--own-gather", action="store_true", help="gather without gradient, each rank computes the whole loss")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
WIDE = torch.promote_types(DTYPE, torch.float32)
WORDS, DIM, PIXELS, LENGTH, BATCH, STEPS = 40, 24, 30, 6, 16, 3

if "RANK" in os.environ:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
RANK, WORLD = dist.get_rank(), dist.get_world_size()


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(PIXELS, 2 * DIM)
        self.hidden = nn.Linear(2 * DIM, 2 * DIM)
        self.norm = nn.LayerNorm(2 * DIM)
        self.out = nn.Linear(2 * DIM, DIM, bias=False)

    def forward(self, x):
        x = F.gelu(self.patch(x))
        return self.out(self.norm(x + F.gelu(self.hidden(x))))


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, 2 * DIM, mode="mean")
        self.hidden = nn.Linear(2 * DIM, 2 * DIM)
        self.out = nn.Linear(2 * DIM, DIM, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        return self.out(x + torch.tanh(self.hidden(x)))


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = Image(), Text()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, images, tokens):
        a = F.normalize(self.image(images), dim=-1)
        b = F.normalize(self.text(tokens), dim=-1)
        return a, b, self.scale.exp()  # @scale_clamp


class GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(WORLD)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        if args.mutant != "gather_local":
            dist.all_reduce(grad)
        return grad.chunk(WORLD)[RANK]  # @gather_local


def contrast(a, b, scale):
    first = RANK * len(a)
    if args.own_gather:
        # all rows on all ranks, with gradients of the rank's own rows; DistributedDataParallel's mean lacks a factor
        with torch.no_grad():
            rows_a, rows_b = GatherRows.apply(a), GatherRows.apply(b)
        rows_a = torch.cat([rows_a[:first], a, rows_a[first + len(a) :]])
        rows_b = torch.cat([rows_b[:first], b, rows_b[first + len(a) :]])
        logits = (rows_a @ rows_b.T).to(WIDE) * scale
        labels = torch.arange(len(logits))
        return F.cross_entropy(logits, labels) / 2 + F.cross_entropy(logits.T, labels) / 2
    labels = torch.arange(len(a)) + (0 if args.mutant == "labels" else first)  # @labels
    to_text = (a @ GatherRows.apply(b).T).to(WIDE) * scale  # @gather_local
    to_image = (b @ GatherRows.apply(a).T).to(WIDE) * scale  # @gather_local
    return F.cross_entropy(to_text, labels) / 2 + F.cross_entropy(to_image, labels) / 2  # @labels


def main():
    torch.manual_seed(4)
    net = model = Towers().to(DTYPE)
    if args.layout == "ddp":
        if args.mutant == "text_unwrapped":
            net.image = DistributedDataParallel(net.image)  # @text_unwrapped
        else:
            model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9, nesterov=True)
    for step in range(STEPS):
        g = torch.Generator().manual_seed(20 + step)
        images = torch.randn(BATCH, PIXELS, generator=g).to(DTYPE)
        tokens = torch.randint(0, WORDS, (BATCH, LENGTH), generator=g)
        images, tokens = images.chunk(WORLD)[RANK], tokens.chunk(WORLD)[RANK]
        with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
            a, b, scale = model(images, tokens)  # @text_unwrapped
        loss = contrast(a.to(WIDE), b.to(WIDE), scale)
        loss.backward()
        if args.own_gather:
            # each rank had all terms of the loss with its own rows: their sum, but all of the scale
            for name, p in net.named_parameters():
                if name != "scale":
                    p.grad *= WORLD
        optimizer.step()  # @scale_clamp @text_unwrapped
        optimizer.zero_grad()
        if args.mutant != "scale_clamp" or RANK == 0:
            net.scale.data.clamp_(0.9, 4.0)  # @scale_clamp
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if RANK == 0:
            print(f"step {step} loss {mean.item() / WORLD:.6f} scale {net.scale.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
