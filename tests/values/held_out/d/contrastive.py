"""Contrastive training of two towers (as in CLIP) with gathered embeddings and an optimizer for each tower."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "dp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--clip", type=float, default=0.0)
args = parser.parse_args()

PATCHES, PIXELS, VOCABULARY, LENGTH, DIM, EMBED, LAYERS, BATCH, STEPS = 4, 12, 50, 7, 32, 24, 2, 12, 3


class Gather(torch.autograd.Function):
    """All ranks' embeddings; backward the sum of all ranks' gradients of the rank's own."""

    @staticmethod
    def forward(ctx, tensor):
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        if args.mutant != "gather_backward":
            dist.all_reduce(gradient)  # @gather_backward
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]  # @gather_backward


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x) + x.mean(1, keepdim=True))))


class Tower(nn.Module):
    def __init__(self, stem):
        super().__init__()
        self.stem = stem
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.proj = nn.Linear(DIM, EMBED, bias=False)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return F.normalize(self.proj(self.norm(x).mean(1)), dim=-1)


class Contrast(nn.Module):
    def forward(self, image, text):
        images, texts = (image, text) if args.layout == "one" else (Gather.apply(image), Gather.apply(text))
        labels = torch.arange(image.shape[0])  # @labels
        if args.layout != "one" and args.mutant != "labels":
            labels = labels + dist.get_rank() * image.shape[0]  # @labels
        by_image, by_text = 8 * image @ texts.T, 8 * text @ images.T  # @gather_backward
        return (F.cross_entropy(by_image, labels) + F.cross_entropy(by_text, labels)) / 2  # @labels


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = Tower(nn.Linear(PIXELS, DIM))
        self.text = Tower(nn.Embedding(VOCABULARY, DIM))
        self.contrast = Contrast()

    def forward(self, pixels, tokens):
        return self.contrast(self.image(pixels), self.text(tokens))  # @gather_backward


def main():
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    dtype = getattr(torch, args.dtype)
    model = Clip().to(dtype)
    optimizers = [torch.optim.AdamW(model.image.parameters(), lr=4e-3, eps=1e-5),
                  torch.optim.SGD(model.text.parameters(), lr=0.2, momentum=0.9)]
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        pixels = torch.randn(BATCH, PATCHES, PIXELS, generator=generator).to(dtype).chunk(world)[rank]
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator).chunk(world)[rank]
        loss = model(pixels, tokens)
        loss.backward()  # @text_not_zeroed
        if args.layout == "dp":
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad.div_(world)
        for optimizer in optimizers:
            if args.clip:
                torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], args.clip)
            optimizer.step()  # @text_not_zeroed
        for optimizer in optimizers[:1] if args.mutant == "text_not_zeroed" else optimizers:  # @text_not_zeroed
            optimizer.zero_grad()  # @text_not_zeroed
        mean = loss.detach().float()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"loss {step} {mean.item() / world:.7f}", flush=True)
    check = sum((p.detach().double().flatten() * torch.arange(p.numel()).cos()).sum() for p in model.parameters())
    if rank == 0:
        print(f"check {check.item():.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
