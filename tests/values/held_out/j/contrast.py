"""Two towers and a contrastive loss; the embeddings of all ranks are gathered, so that each has all negatives."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

INPUTS, VOCAB, DIM, SPACE, BATCH, LENGTH, STEPS = 24, 40, 32, 16, 16, 6, 3


class Gather(torch.autograd.Function):
    """All ranks' rows; backward, the sum of all ranks' gradients of the own rows."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


def gather_constants(x):
    """All ranks' rows, with a gradient for the own rows only."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.detach().contiguous())
    parts[dist.get_rank()] = x
    return torch.cat(parts)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class ImageTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(INPUTS, DIM)
        self.blocks = nn.Sequential(Residual(), Residual())
        self.proj = nn.Linear(DIM, SPACE, bias=False)

    def forward(self, x):
        return self.proj(self.blocks(self.stem(x)))


class TextTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.Sequential(Residual(), Residual())
        self.proj = nn.Linear(DIM, SPACE, bias=False)

    def forward(self, tokens):
        return self.proj(self.blocks(self.embed(tokens)).mean(1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = ImageTower(), TextTower()
        self.logit_scale = nn.Parameter(torch.tensor(1.2))

    def forward(self, images, tokens):
        a, b = self.image(images), self.text(tokens)
        return F.normalize(a, dim=-1), F.normalize(b, dim=-1), self.logit_scale.exp()


def contrastive(a, b, scale, args, step):
    """The mean of both directions over the own pairs."""
    if args.layout == "one":
        everyone_a, everyone_b, offset = a, b, 0
    else:
        gather = gather_constants if args.mutant == "constants" else Gather.apply
        everyone_a, everyone_b = gather(a), gather(b)
        offset = dist.get_rank() * len(a)
    if args.mutant == "offset":
        offset = 0
    labels = torch.arange(len(a)) + offset
    images = (scale * a @ everyone_b.T).float()
    texts = (scale * b @ everyone_a.T).float()
    return (F.cross_entropy(images, labels) + F.cross_entropy(texts, labels)) / 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="one", choices=["one", "gather"])
    parser.add_argument("--reduce", default="hand", choices=["hand", "ddp"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adamw"])
    parser.add_argument("--mutant", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    dtype = getattr(torch, args.dtype)

    torch.manual_seed(rank if args.mutant == "init" else 0)
    model = Model().to(dtype)
    if args.mutant == "init":
        with torch.no_grad():
            for p in model.image.parameters():
                dist.broadcast(p, 0)
    trained = model
    if args.layout == "gather" and args.reduce == "ddp":
        trained = DistributedDataParallel(model)
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 2))

    for step in range(STEPS):
        draw = torch.Generator().manual_seed(610 + step)
        images = torch.randn(BATCH, INPUTS, generator=draw).to(dtype)
        tokens = torch.randint(VOCAB, (BATCH, LENGTH), generator=draw)
        a, b, scale = trained(images.chunk(world)[rank], tokens.chunk(world)[rank])
        loss = contrastive(a, b, scale, args, step)
        loss.backward()
        if args.layout == "gather" and args.reduce == "hand":
            for name, p in model.named_parameters():
                dist.all_reduce(p.grad)
                if not (args.mutant == "scale_sum" and name == "logit_scale"):
                    p.grad /= world
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        warmup.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=math.log(100))
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item() / world:.6f} norm {norm.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
