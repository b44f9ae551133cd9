"""Image and text towers with a contrastive loss over gathered features; the text tower is frozen but for LoRA."""
import argparse
import math
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
VOCAB, DIM, LENGTH, BATCH, FEATURES, RANK = 40, 32, 8, 16, 24, 4


class LoRA(nn.Module):
    def __init__(self, base, seed):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        n_out, n_in = base.weight.shape
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter((torch.randn(RANK, n_in, generator=g) / math.sqrt(n_in)).to(base.weight.dtype))
        self.b = nn.Parameter((torch.randn(n_out, RANK, generator=g) * 0.1).to(base.weight.dtype))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * 2.0


class TextBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.query, self.value = nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.key, self.proj = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.norm2, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 64), nn.Linear(64, DIM)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (w(y).unflatten(-1, (4, -1)).transpose(1, 2) for w in (self.query, self.key, self.value))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Parameter(torch.randn(LENGTH, DIM) * 0.1)
        self.blocks = nn.ModuleList(TextBlock() for _ in range(2))
        self.norm, self.proj = nn.LayerNorm(DIM), nn.Linear(DIM, FEATURES, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.proj(self.norm(x).mean(1))


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1)
        self.norm1, self.conv = nn.GroupNorm(4, 16), nn.Conv2d(16, 24, 3, 2, 1)
        self.norm2, self.proj = nn.GroupNorm(4, 24), nn.Linear(24, FEATURES, bias=False)

    def forward(self, x):
        x = F.silu(self.norm1(self.stem(x)))
        return self.proj(F.silu(self.norm2(self.conv(x))).mean((2, 3)))


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = Image(), Text()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, images, tokens):
        images, tokens = self.image(images), self.text(tokens)
        wide = torch.promote_types(DTYPE, torch.float32)
        return F.normalize(images.to(wide), dim=-1), F.normalize(tokens.to(wide), dim=-1), self.scale.exp()


def add_lora(model):
    model.text.requires_grad_(False)
    model.text.proj.requires_grad_(True)
    for i, block in enumerate(model.text.blocks):
        block.query, block.value = LoRA(block.query, 20 + i), LoRA(block.value, 30 + i)


class Gather(torch.autograd.Function):
    """Features of all ranks, with gradients of all ranks' losses."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        if args.mutant != "gather_own":
            dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]  # @gather_own


def contrast(image, text, scale):
    """The mean over the rank's own rows of both directions."""
    images, texts = Gather.apply(image), Gather.apply(text)  # @gather_own
    labels = torch.arange(len(image))
    if args.mutant != "labels_offset":
        labels = labels + len(image) * dist.get_rank()
    rows = F.cross_entropy(scale * image @ texts.T, labels)  # @labels_offset
    columns = F.cross_entropy(scale * text @ images.T, labels)  # @labels_offset
    return (rows + columns) / 2


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = net = Towers().to(DTYPE)
    if args.mutant != "lora_late":
        add_lora(net)
    if args.layout == "ddp":
        model = DistributedDataParallel(net, find_unused_parameters=args.mutant == "lora_late")
    if args.mutant == "lora_late":
        add_lora(net)  # @lora_late
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=5e-3, weight_decay=0.05, eps=1e-5)
    for step in range(3):
        g = torch.Generator().manual_seed(150 + step)
        tokens = torch.randint(0, VOCAB, (BATCH, LENGTH), generator=g)
        images = torch.randn(BATCH, 3, 8, 8, generator=g) + tokens[:, :3, None, None] / 20
        rows = torch.arange(BATCH).chunk(world)[rank]
        with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
            image, text, scale = model(images.to(DTYPE)[rows], tokens[rows])
        loss = contrast(image, text, scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # @lora_late
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / world:.7f}", flush=True)
    if args.verify and rank == 0:
        print(f"sum {sum(p.detach().double().abs().sum().item() for p in net.parameters()):.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
