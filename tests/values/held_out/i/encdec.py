"""An encoder and a decoder with cross attention; "tp" divides heads and hidden units, "dp" the batch."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--layout", choices=["one", "tp", "dp"], default="one")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--mutant", default="")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--smoothing", type=float, default=0.0)
parser.add_argument("--dropout", type=float, default=0.0)
args = parser.parse_args()
V, D, S, T, B, HEADS = 32, 32, 9, 7, 8, 4
PAD, BOS = 0, 1

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
tp = world if args.layout == "tp" else 1
dp = world if args.layout == "dp" else 1


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x / tp if args.mutant == "leave_mean" else x

    @staticmethod
    def backward(ctx, g):
        return g


def enter(x):
    return Enter.apply(x) if tp > 1 else x


class Split(nn.Module):
    """A linear layer with divided outputs (dim 0) or inputs (dim 1)."""

    def __init__(self, n_in, n_out, dim):
        super().__init__()
        self.dim = dim
        full = torch.randn(n_out, n_in) * n_in**-0.5
        part = rank if tp > 1 else 0
        self.weight = nn.Parameter(full.chunk(tp, dim)[part].clone())

    def forward(self, x):
        y = F.linear(x, self.weight)
        return Leave.apply(y) if self.dim == 1 and tp > 1 else y


class Attention(nn.Module):
    def __init__(self, cross=False):
        super().__init__()
        self.cross = cross
        self.q, self.k, self.v = (Split(D, D, 0) for _ in range(3))
        self.out = Split(D, D, 1)

    def forward(self, x, memory, mask):
        x = enter(x)
        if not self.cross:
            memory = x
        elif args.mutant != "memory_enter":
            memory = enter(memory)
        q, k, v = self.q(x), self.k(memory), self.v(memory)
        q, k, v = (z.unflatten(-1, (HEADS // tp, -1)).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(D), Attention()
        if decoder:
            self.norm2, self.cross = nn.LayerNorm(D), Attention(cross=True)
        self.norm3, self.up, self.down = nn.LayerNorm(D), Split(D, 2 * D, 0), Split(2 * D, D, 1)
        self.drop = nn.Dropout(args.dropout)

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = x + self.attn(self.norm1(x), None, mask)
        if memory is not None:
            x = x + self.cross(self.norm2(x), memory, memory_mask)
        return x + self.drop(self.down(F.gelu(self.up(enter(self.norm3(x))))))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(max(S, T), D)
        self.encoder = nn.ModuleList(Layer(False) for _ in range(2))
        self.decoder = nn.ModuleList(Layer(True) for _ in range(2))
        self.norm, self.memory_norm = nn.LayerNorm(D), nn.LayerNorm(D)
        self.kept = None

    def forward(self, source, target):
        lengths = (source != PAD).sum(1)
        if args.mutant == "pad" and rank == 1:
            lengths = lengths + 1
        valid = (torch.arange(S) < lengths.unsqueeze(1)).view(-1, 1, 1, S)
        x = self.tok(source) + self.pos(torch.arange(S))
        for layer in self.encoder:
            x = layer(x, valid)
        memory = self.memory_norm(x)
        memory_valid = valid
        if args.mutant == "kept":
            self.kept = valid if self.kept is None else self.kept
            memory_valid = self.kept
        causal = torch.ones(T, T, dtype=torch.bool).tril(0)
        first = torch.full_like(target[:, :1], BOS)
        y = self.tok(torch.cat([first, target[:, :-1]], 1)) + self.pos(torch.arange(T))
        for layer in self.decoder:
            y = layer(y, causal, memory, memory_valid)
        return F.linear(self.norm(y), self.tok.weight) * D**-0.5


torch.manual_seed(17)
model = Translator().to(getattr(torch, args.dtype))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
data = torch.Generator().manual_seed(18)
for step in range(3):
    source = torch.randint(2, V, (B, S), generator=data)
    lengths = torch.randint(4, S, (B,), generator=data)
    source = source.masked_fill(torch.arange(S) >= lengths.unsqueeze(1), PAD)
    target = torch.randint(2, V, (B, T), generator=data)
    torch.manual_seed(200 + step)
    part = rank if dp > 1 else 0
    sources, targets = source.chunk(dp)[part], target.chunk(dp)[part]
    optimizer.zero_grad()
    shown = torch.zeros(())
    for src, tgt in zip(sources.chunk(args.accumulate), targets.chunk(args.accumulate)):
        logits = model(src, tgt).float().flatten(0, 1)
        loss = F.cross_entropy(logits, tgt.flatten(), label_smoothing=args.smoothing, reduction="sum")
        loss = loss / target.numel()
        loss.backward()
        shown += loss.detach()
    total = torch.zeros(())
    for name, p in model.named_parameters():
        if dp > 1 and not (args.mutant == "encoder_unreduced" and name.startswith("encoder")):
            dist.all_reduce(p.grad)
        square = p.grad.float().pow(2).sum()
        split = any(f".{key}.weight" in name for key in ("q", "k", "v", "out", "up", "down"))
        total += square if split else square / tp
    if tp > 1:
        dist.all_reduce(total)
    norm = total.sqrt()
    if args.clip:
        for p in model.parameters():
            p.grad.mul_((args.clip / norm).clamp(max=1.0))
    optimizer.step()
    if dp > 1:
        dist.all_reduce(shown)
    size = sum(p.detach().float().norm().item() for k, p in model.named_parameters() if "norm" in k or "tok" in k)
    print(f"rank {rank} step {step} loss {shown.item():.6f} norm {norm.item():.6f} size {size:.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
