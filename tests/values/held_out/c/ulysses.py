"""Sequence model with Ulysses context parallelism: all-to-all exchanges the sequence for heads."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "cp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--checkpoint", action="store_true")
args = parser.parse_args()

VOCAB, DIM, HEADS, LAYERS, BATCH, LENGTH = 72, 48, 4, 2, 3, 16
HEAD = DIM // HEADS
dist.init_process_group("gloo")
RANK = dist.get_rank()
CP = dist.get_world_size() if args.layout == "cp" else 1
DTYPE = getattr(torch, args.dtype)


def exchange(x, scatter, gather):
    """Divides dimension `scatter` over the ranks and joins their parts of dimension `gather`."""
    send = torch.stack([part.contiguous() for part in x.chunk(CP, scatter)])
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send)
    return torch.cat(receive.unbind(0), gather)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scatter, gather):
        ctx.dims = scatter, gather
        return exchange(x, scatter, gather)

    @staticmethod
    def backward(ctx, gradient):
        scatter, gather = ctx.dims
        return exchange(gradient, gather, scatter), None, None


def to_heads(x):  # [batch, part of sequence, heads, head] -> [batch, sequence, part of heads, head]
    return x if CP == 1 else Exchange.apply(x, 2, 1)


def to_sequence(x, index):
    if CP == 1:
        return x
    if args.mutant == "heads_order" and index == 1:
        # joins the parts as the inner dimension of (heads per rank, ranks)
        x = Exchange.apply(x, 1, 2)  # @heads_order
        batch, length = x.shape[:2]
        return x.view(batch, length, CP, -1, HEAD).transpose(2, 3).reshape(batch, length, HEADS, HEAD)  # @heads_order
    return Exchange.apply(x, 1, 2)


def rotary(x, start):
    angles = (start + torch.arange(x.shape[1]))[:, None] / 50.0 ** (torch.arange(HEAD // 2) / (HEAD // 2))
    cos, sin = (f(angles)[:, None].to(x.dtype) for f in (torch.cos, torch.sin))
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, HEAD).unbind(2)
        start = 0 if args.mutant == "rotary" else RANK * length
        q, k = rotary(q, start), rotary(k, start)  # @rotary
        q, k, v = (to_heads(t).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        y = to_sequence(y, self.index)  # @heads_order
        return self.out(y.reshape(batch, length, DIM))  # @heads_order


class Block(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(DIM), Attention(index), nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.SiLU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block(i) for i in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        return self.head(self.norm(x))


torch.manual_seed(37)
model = Model().to(DTYPE)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98))

for step in range(3):
    generator = torch.Generator().manual_seed(80 + step)
    data = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=generator)
    tokens, targets = data[:, :-1], data[:, 1:].clone()
    for i, prompt in enumerate(torch.randint(1, LENGTH // 2 + 3, (BATCH,), generator=generator).tolist()):
        targets[i, :prompt] = -100  # the loss is that of answers
    count = (targets != -100).sum()
    tokens, targets = tokens.chunk(CP, 1)[RANK], targets.chunk(CP, 1)[RANK]
    if args.mutant == "shift":
        targets = torch.cat([targets[:, :-1], torch.full((BATCH, 1), -100)], 1)  # @shift
    with torch.autocast("cpu", torch.bfloat16, enabled=args.autocast):
        logits = model(tokens)
    wide = torch.promote_types(DTYPE, torch.float32)
    loss = F.cross_entropy(logits.flatten(0, 1).to(wide), targets.flatten(), ignore_index=-100, reduction="sum")  # @shift
    loss = loss / count
    loss.backward()
    total = loss.detach().double()
    if CP > 1:
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        for p, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
            p.grad.copy_(part.view_as(p))
        dist.all_reduce(total)
    optimizer.step()
    size = sum(p.detach().double().abs().sum() for p in model.parameters())
    slope = sum(p.grad.double().abs().sum() for p in model.parameters())
    optimizer.zero_grad()
    if RANK == 0:
        print(f"step {step} loss {total.item():.7f} sum {size.item():.7f} grad {slope.item():.7f}", flush=True)

dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
