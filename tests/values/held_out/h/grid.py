"""Language model on a grid of data and tensor parallel ranks, both by hand."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "grid"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--tp", type=int, default=2)
parser.add_argument("--accumulate", type=int, default=1)
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
VOCAB, DIM, HEADS, LENGTH, BATCH, STEPS = 32, 32, 4, 8, 12, 3
TP = DP = None  # groups
place = {"dp": 0, "tp": 0, "rows": None, "step": 0}


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=TP)
        return grad


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x, group=TP)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Column(nn.Linear):
    def forward(self, x):
        if args.mutant == "no_copy" and self.bias is not None:
            return super().forward(x)  # @no_copy
        return super().forward(Copy.apply(x))

    def cut(self, rank, size):
        self.weight = nn.Parameter(self.weight.detach().chunk(size)[rank].clone())
        if self.bias is not None:
            self.bias = nn.Parameter(self.bias.detach().chunk(size)[rank].clone())


class Row(nn.Linear):
    def forward(self, x):
        if args.mutant == "bias_twice":
            return Reduce.apply(F.linear(x, self.weight, self.bias))  # @bias_twice
        return Reduce.apply(F.linear(x, self.weight)) + self.bias  # @bias_twice

    def cut(self, rank, size):
        self.weight = nn.Parameter(self.weight.detach().chunk(size, 1)[rank].clone())


class Dropout(nn.Module):
    """The mask of the whole batch is drawn on every rank, so that each layout drops the same numbers."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, x):
        if not args.dropout:
            return x
        seed = 1000 * place["step"] + self.number
        if args.mutant == "seed":
            seed += 77 * dist.get_rank()  # @seed
        g = torch.Generator().manual_seed(seed)
        keep = torch.rand(BATCH, LENGTH, DIM, generator=g) >= args.dropout  # @seed
        return x * keep[place["rows"]] / (1 - args.dropout)  # @seed


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (Column(DIM, DIM, bias=False) for _ in range(3))
        self.proj = Row(DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, -1, DIM // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, -1))  # @bias_twice


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.norm1, self.attn, self.drop1 = nn.LayerNorm(DIM), Attention(), Dropout(2 * number)
        self.norm2, self.up, self.down = nn.LayerNorm(DIM), Column(DIM, 2 * DIM), Row(2 * DIM, DIM)
        self.drop2 = Dropout(2 * number + 1)

    def forward(self, x):
        x = x + self.drop1(self.attn(self.norm1(x)))  # @seed
        return x + self.drop2(self.down(F.gelu(self.up(self.norm2(x)))))  # @no_copy


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(Block(i) for i in range(2))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    global TP, DP
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    tp = args.tp if args.layout == "grid" else 1
    dp = world // tp
    for i in range(dp):
        group = dist.new_group(range(i * tp, (i + 1) * tp))
        TP = group if rank // tp == i else TP
    for i in range(tp):
        group = dist.new_group(range(i, world, tp))
        DP = group if rank % tp == i else DP
    place.update(dp=rank // tp, tp=rank % tp)
    torch.manual_seed(30)
    model = Model().to(DTYPE)
    for m in model.modules():
        if isinstance(m, (Column, Row)):
            m.cut(place["tp"], tp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-5)
    for step in range(STEPS):
        place["step"] = step
        g = torch.Generator().manual_seed(400 + step)
        tokens = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=g)
        total = torch.zeros(())
        for rows in torch.arange(BATCH).chunk(args.accumulate):
            rows = place["rows"] = rows.chunk(dp)[place["dp"]]
            logits = model(tokens[rows, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[rows, 1:].flatten(), reduction="sum")
            loss = loss / (BATCH * LENGTH)
            loss.backward()  # @no_copy
            total += loss.detach()
        for name, p in model.named_parameters():
            group = DP
            if args.mutant == "wrong_group" and "norm" in name:
                group = TP  # @wrong_group
            dist.all_reduce(p.grad, group=group)  # @wrong_group
            if args.mutant == "mean" and ".attn." in name:
                p.grad.div_(dp)  # @mean
        optimizer.step()  # @wrong_group @mean
        optimizer.zero_grad()
        dist.all_reduce(total, group=DP)
        if rank == 0:
            print(f"step {step} loss {total.item():.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
