"""Context parallel transformer: ring attention with an online softmax, or all-to-all between heads and sequence."""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "ring", "ulysses"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32", help="or autocast")
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()
DTYPE = torch.float64 if args.dtype == "float64" else torch.float32
VOCAB, DIM, HEADS, LAYERS, SEQ, BATCH = 40, 32, 4, 2, 24, 2
HEAD = DIM // HEADS

dist.init_process_group("gloo")
RANK, CP = dist.get_rank(), dist.get_world_size()
CHUNK = SEQ // CP


def rotate(*tensors):
    received, works = [torch.empty_like(t).contiguous() for t in tensors], []
    for ours, theirs in zip(tensors, received):
        works.append(dist.isend(ours.contiguous(), (RANK + 1) % CP))
        works.append(dist.irecv(theirs, (RANK - 1) % CP))
    for work in works:
        work.wait()
    return received


def masked_scores(q, k, source):
    scores = q @ k.transpose(-1, -2)  # @kv_inplace
    ours, theirs = torch.arange(CHUNK) + RANK * CHUNK, torch.arange(CHUNK) + source * CHUNK
    return scores.masked_fill(ours[:, None] < theirs, float("-inf"))


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, stay):
        ctx.scale, ctx.stay, start = HEAD**-0.5, stay, (k, v)
        k, v = k.contiguous().clone(), v.contiguous()
        largest = torch.full(q.shape[:-1], float("-inf"), dtype=q.dtype)
        total, out = torch.zeros_like(largest), torch.zeros_like(q)
        for hop in range(CP):
            source = (RANK - hop) % CP
            if source <= RANK:
                scaled = k.mul_(ctx.scale) if args.mutant == "kv_inplace" else k * ctx.scale  # @kv_inplace
                scores = masked_scores(q, scaled, source)
                new = torch.maximum(largest, scores.amax(-1))
                weights, shrink = (scores - new[..., None]).exp(), (largest - new).exp()
                if args.mutant == "no_rescale":
                    shrink = torch.where(shrink > 0, 1.0, 0.0)  # @no_rescale
                total = total * shrink + weights.sum(-1)  # @no_rescale
                out = out * shrink[..., None] + weights @ v  # @no_rescale
                largest = new
            k, v = rotate(k, v)  # @kv_inplace
        out = out / total[..., None]
        ctx.save_for_backward(q, *start, out, largest + total.log())
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, log_sum = ctx.saved_tensors
        delta = (grad * out).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for hop in range(CP):
            source = (RANK - hop) % CP
            if source <= RANK:
                p = (masked_scores(q, k * ctx.scale, source) - log_sum[..., None]).exp()
                ds = p * (grad @ v.transpose(-1, -2) - delta) * ctx.scale
                dq, dk, dv = dq + ds @ k, dk + ds.transpose(-1, -2) @ q, dv + p.transpose(-1, -2) @ grad
            if not (ctx.stay and hop == CP - 1):
                k, v, dk, dv = rotate(k, v, dk, dv)  # @not_home
        return dq, dk, dv, None  # @not_home


class Exchange(torch.autograd.Function):
    """Divides one dimension over ranks instead of another one."""

    @staticmethod
    def forward(ctx, x, split, join, shift):
        ctx.dims = split, join
        parts = [part.contiguous() for part in x.chunk(CP, split)]
        received = [torch.empty_like(part) for part in parts]
        all_to_all(received, parts)  # @heads
        return torch.cat(received[shift:] + received[:shift], join)  # @heads

    @staticmethod
    def backward(ctx, grad):
        split, join = ctx.dims
        return Exchange.apply(grad, join, split, 0), None, None, None


def all_to_all(received, parts):
    out = torch.empty(CP, *parts[0].shape, dtype=parts[0].dtype)
    dist.all_to_all_single(out, torch.stack(parts))
    for mine, theirs in zip(received, out):
        mine.copy_(theirs)


class Rotary(nn.Module):
    def forward(self, x):
        position = torch.arange(x.shape[-2], dtype=torch.float64) + (RANK * CHUNK if args.layout != "one" else 0)
        angle = position[:, None] * 100.0 ** (-torch.arange(HEAD // 2, dtype=torch.float64) / (HEAD // 2))
        a, b = x.chunk(2, -1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Core(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.last = layer == LAYERS - 1

    def forward(self, q, k, v):
        if args.layout == "ring":
            return RingAttention.apply(q, k, v, args.mutant == "not_home" and self.last)
        if args.layout == "ulysses":
            q, k, v = (Exchange.apply(t, 1, 2, 0) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if args.layout == "ulysses":
            y = Exchange.apply(y, 2, 1, int(args.mutant == "heads" and self.last))
        return y


class Attention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.rotary_q, self.rotary_k, self.core = Rotary(), Rotary(), Core(layer)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (HEADS, HEAD)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = self.core(self.rotary_q(q), self.rotary_k(k), v)
        return self.wo(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(DIM), nn.LayerNorm(DIM), Attention(layer)
        self.mlp = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Block(i) for i in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(61)
    model = Model()
    for name, p in model.named_parameters():
        if name.endswith(("wq.weight", "wk.weight")):
            p.data.mul_(4)
    model.to(DTYPE)
    if args.compile:
        for layer in model.layers:
            layer.mlp.compile(backend="aot_eager")
    initial = {n: p.detach().double().numpy().copy() for n, p in model.named_parameters()}
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3, eps=1e-3)
    cast = torch.autocast("cpu", torch.bfloat16) if args.dtype == "autocast" else contextlib.nullcontext()
    data = torch.Generator().manual_seed(4)
    for step in range(3):
        tokens = torch.randint(VOCAB, (BATCH, SEQ + 1), generator=data)
        own = slice(RANK * CHUNK, (RANK + 1) * CHUNK)
        with cast:
            logits = model(tokens[:, :-1][:, own])
        loss = F.cross_entropy(logits.to(DTYPE).flatten(0, 1), tokens[:, 1:][:, own].flatten())
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(CP)
        optimizer.step()
        shown = loss.detach().double()
        dist.all_reduce(shown)
        if RANK == 0:
            print(f"step {step} loss {shown.item() / CP:.7f}")
    rows = []
    for name, p in model.named_parameters():
        now = p.detach().double().numpy()
        rows.append([(now**2).sum() / CP, ((now - initial[name]) ** 2).sum() / CP])
    rows = torch.tensor(rows, dtype=torch.float64)
    dist.all_reduce(rows)
    if RANK == 0:
        print("norms", " ".join(f"{v:.6f}" for v in rows.sqrt().flatten().tolist()))


main()
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
