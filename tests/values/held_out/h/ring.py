"""Language model with the sequence divided over ranks: keys and values go around a ring."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "ring"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--accumulate", type=int, default=1)
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
VOCAB, DIM, HEADS, LENGTH, BATCH, STEPS = 32, 32, 2, 16, 4, 3


def shift(x, by):
    rank, world = dist.get_rank(), dist.get_world_size()
    y = torch.empty_like(x)
    for work in dist.batch_isend_irecv([
        dist.P2POp(dist.isend, x.contiguous(), (rank + by) % world),
        dist.P2POp(dist.irecv, y, (rank - by) % world),
    ]):
        work.wait()
    return y


class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return shift(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return shift(grad, -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x):
        b, t, d = x.shape
        rank, world = dist.get_rank(), dist.get_world_size()
        q, k, v = (f(x).view(b, t, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, kv = q.float() * (d // HEADS) ** -0.5, torch.stack([k, v])
        here = rank * t + torch.arange(t)
        top = torch.full((b, HEADS, t, 1), -1e30)
        total, weights = torch.zeros(b, HEADS, t, d // HEADS), torch.zeros(b, HEADS, t, 1)
        for i in range(world):
            source = (rank - i) % world
            if args.mutant == "mask":
                source = rank - i  # @mask
            there = source * t + torch.arange(t)  # @mask
            scores = q @ kv[0].float().transpose(-1, -2)  # @mask
            scores = scores.masked_fill(there[None] > here[:, None], -1e30)  # @mask
            new = torch.maximum(top, scores.amax(-1, keepdim=True)).detach()  # @mask
            e = (scores - new).exp() * (scores > -1e29)  # @mask
            old = (top - new).exp()
            total = total * old + e @ kv[1].float()  # @mask
            weights = weights * old + e.sum(-1, keepdim=True)  # @mask
            top = new
            if i < world - 1:
                kv = Shift.apply(kv)  # @no_return
                if args.mutant == "no_return":
                    kv = kv.detach()  # @no_return
        y = (total / weights).to(x.dtype)  # @mask
        return self.proj(y.transpose(1, 2).reshape(b, t, d))  # @mask


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(DIM), Attention()
        self.norm2 = nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        t = tokens.shape[1]
        start = 0 if args.mutant == "positions" else dist.get_rank() * t  # @positions
        x = self.tok(tokens) + self.pos(torch.arange(start, start + t))  # @positions
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        return self.head(self.norm(x))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    model = Model().to(DTYPE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4)
    t = LENGTH // world
    for step in range(STEPS):
        g = torch.Generator().manual_seed(60 + step)
        tokens = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=g)
        total = torch.zeros(())
        for rows in torch.arange(BATCH).chunk(args.accumulate):
            mine = tokens[rows, rank * t:(rank + 1) * t]
            target = tokens[rows, 1 + rank * t:1 + (rank + 1) * t]
            if args.mutant == "labels" and rank < world - 1:
                target = F.pad(mine[:, 1:], (0, 1), value=-100)  # @labels
            logits = model(mine)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), reduction="sum")  # @labels
            loss = loss / (BATCH * LENGTH)  # @labels
            loss.backward()  # @no_return @labels
            total += loss.detach()
        for name, p in model.named_parameters():
            if args.mutant == "norm" and name.startswith("norm."):
                continue  # @norm
            dist.all_reduce(p.grad)  # @no_return @norm
        optimizer.step()  # @norm
        optimizer.zero_grad()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
