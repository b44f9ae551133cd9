"""Two towers with a contrastive loss over the features of all ranks, and a teacher of averaged weights."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "data"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--reload", action="store_true")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
IMAGE, WORDS, LENGTH, DIM, OUT, BATCH, STEPS = 24, 30, 6, 32, 16, 16, 3


class GatherFeatures(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)  # every rank's loss has a gradient for my features  # @gather
        return grad.chunk(dist.get_world_size())[dist.get_rank()]  # @gather


def gather(x):
    if args.mutant == "gather":
        with torch.no_grad():
            parts = list(GatherFeatures.apply(x).chunk(dist.get_world_size()))
        parts[dist.get_rank()] = x  # @gather
        return torch.cat(parts)  # @gather
    return GatherFeatures.apply(x)  # @gather


def activate(x):
    return x * torch.sigmoid(1.702 * x)


if args.compile:
    activate = torch.compile(activate, backend="eager")


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return x + self.down(activate(self.up(self.norm(x))))


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.body, self.proj = nn.Linear(IMAGE, DIM), Body(), nn.Linear(DIM, OUT, bias=False)

    def forward(self, x):
        return self.proj(self.body(self.stem(x)))


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.body, self.proj = nn.Embedding(WORDS, DIM), Body(), nn.Linear(DIM, OUT, bias=False)

    def forward(self, x):
        return self.proj(self.body(self.tok(x).mean(1)))


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = Image(), Text()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.turn = nn.Linear(OUT, OUT, bias=False)  # the image's features are turned towards the text's

    def forward(self, image, words):
        a = F.normalize(self.turn(self.image(image)).float(), dim=-1)
        b = F.normalize(self.text(words).float(), dim=-1)
        return a, b, self.scale.float().exp()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(12)
    model = Towers().to(DTYPE)
    teacher = Image().to(DTYPE)
    teacher.load_state_dict(model.image.state_dict())
    teacher.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-5)
    for step in range(STEPS):
        g = torch.Generator().manual_seed(200 + step)
        image = torch.randn(BATCH, IMAGE, generator=g).to(DTYPE)
        words = torch.randint(0, WORDS, (BATCH, LENGTH), generator=g)
        rows = torch.arange(BATCH).chunk(world)[rank]
        a, b, scale = model(image[rows], words[rows])
        all_a, all_b = gather(a), gather(b)  # @gather
        label = torch.arange(len(rows)) if args.mutant == "label" else rows  # @label
        loss = F.cross_entropy(scale * a @ all_b.T, label) / 2  # @label
        loss = loss + F.cross_entropy(scale * b @ all_a.T, label) / 2  # @label
        with torch.no_grad():
            target = F.normalize(model.turn(teacher(image[rows])).float(), dim=-1)  # @teacher
        loss = loss + (a - target).square().sum(-1).mean() + (1 - (a * target).sum(-1)).mean()
        loss.backward()  # @gather @label
        for name, p in model.named_parameters():
            if args.mutant == "scale" and p.ndim == 0:
                continue  # @scale
            dist.all_reduce(p.grad)  # @scale @gather
            p.grad.div_(world)
            if args.mutant == "text_twice" and name.startswith("text.body"):
                p.grad.div_(world)  # @text_twice
        if args.clip:
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()  # @scale @text_twice
        optimizer.zero_grad()
        with torch.no_grad():
            for p, q in zip(teacher.parameters(), model.image.parameters()):
                if args.mutant == "teacher" and rank > 0:
                    break  # @teacher
                p.lerp_(q, 0.4)  # @teacher
        if args.reload and step == 0:
            state, moments = model.state_dict(), optimizer.state_dict()
            model.load_state_dict({k: v.clone() for k, v in state.items()})
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-5)
            optimizer.load_state_dict(moments)
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item() / world:.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
