"""A small GPT with tensor parallel layers by hand: vocabulary, heads and hidden units are divided."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "tp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--tied", action="store_true")
parser.add_argument("--checkpoint", action="store_true")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
VOCAB, DIM, HEADS, LAYERS, SEQ, BATCH = 64, 32, 4, 3, 12, 4

dist.init_process_group("gloo")
RANK, TP = dist.get_rank(), dist.get_world_size()
GEN = torch.Generator().manual_seed(11)


def normal(*shape, std=0.02):
    return (torch.randn(*shape, generator=GEN) * std).to(DTYPE)


def part(tensor, dim):
    return tensor.chunk(TP, dim)[RANK].clone().contiguous()


class CopyToTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


class ReduceFromTensorParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class GatherLast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(TP)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx, grad):
        return grad.chunk(TP, -1)[RANK].contiguous()


def collective(function, x):
    return function.apply(x) if TP > 1 else x


class ColumnLinear(nn.Module):
    def __init__(self, weight, bias=None, skip_copy=False):
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias) if bias is not None else None
        self.skip_copy = skip_copy

    def forward(self, x):
        if not self.skip_copy:
            x = collective(CopyToTensorParallel, x)  # @head_copy
        return F.linear(x, self.weight, self.bias)  # @head_copy @qkv_rows


class RowLinear(nn.Module):
    def __init__(self, inputs, outputs, bias_early=False):
        super().__init__()
        self.weight = nn.Parameter(part(normal(outputs, inputs, std=0.15), 1))
        self.bias = nn.Parameter(normal(outputs, std=0.3))
        self.bias_early = bias_early

    def forward(self, x):
        y = F.linear(x, self.weight, self.bias if self.bias_early else None)  # @bias_per_rank
        y = collective(ReduceFromTensorParallel, y)  # @bias_per_rank
        return y if self.bias_early else y + self.bias


class VocabularyEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(part(normal(VOCAB, DIM, std=0.5), 0))

    def forward(self, tokens):
        rows = self.weight.shape[0]
        local = tokens - RANK * rows
        outside = (local < 0) | (local >= rows)
        x = F.embedding(local.masked_fill(outside, 0), self.weight)
        return collective(ReduceFromTensorParallel, x.masked_fill(outside[..., None], 0))


class Core(nn.Module):
    def forward(self, qkv):
        batch, seq, _ = qkv.shape
        q, k, v = qkv.view(batch, seq, 3, -1, DIM // HEADS).permute(2, 0, 3, 1, 4)  # @qkv_rows
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # @qkv_rows
        return y.transpose(1, 2).reshape(batch, seq, -1)


class Attention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        full = normal(3 * DIM, DIM, std=0.25)
        if args.mutant == "qkv_rows" and layer == 1:
            weight = part(full, 0)  # @qkv_rows
        else:
            weight = part(full.view(3, DIM, DIM), 1).reshape(-1, DIM)
        self.qkv = ColumnLinear(weight)
        self.core = Core()
        self.proj = RowLinear(DIM, DIM, args.mutant == "bias_per_rank" and layer == 1)

    def forward(self, x):
        return self.proj(self.core(self.qkv(x)))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = ColumnLinear(part(normal(4 * DIM, DIM, std=0.2), 0), part(normal(4 * DIM, std=0.1), 0))
        self.down = RowLinear(4 * DIM, DIM)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM, dtype=DTYPE), nn.LayerNorm(DIM, dtype=DTYPE)
        self.attn, self.mlp = Attention(layer), MLP()

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = VocabularyEmbedding()
        self.position = nn.Parameter(normal(SEQ, DIM, std=0.2))
        self.blocks = nn.ModuleList(Block(i) for i in range(LAYERS))
        self.norm = nn.LayerNorm(DIM, dtype=DTYPE)
        self.head = ColumnLinear(part(normal(VOCAB, DIM, std=0.2), 0), skip_copy=args.mutant == "head_copy")
        if args.tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) + self.position
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        return collective(GatherLast, self.head(self.norm(x)))


def is_sharded(name):
    return any(key in name for key in ("qkv", "up.", "proj.weight", "down.weight", "embed", "head"))


def clip(model, limit):
    squares = {True: torch.zeros(()), False: torch.zeros(())}
    for name, p in model.named_parameters():
        squares[is_sharded(name)] = squares[is_sharded(name)] + p.grad.float().square().sum()
    if args.mutant != "clip_local":
        dist.all_reduce(squares[True])  # @clip_local
    norm = (squares[True] + squares[False]).sqrt()  # @clip_local
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)  # @clip_local
    for p in model.parameters():
        p.grad.mul_(scale.to(p.grad.dtype))  # @clip_local
    return norm


def summary(model, initial):
    rows = []
    for name, p in model.named_parameters():
        now = p.detach().double().numpy()
        share = 1.0 if is_sharded(name) else 1.0 / TP
        rows.append([share * (now**2).sum(), share * ((now - initial[name]) ** 2).sum()])
    rows = torch.tensor(rows, dtype=torch.float64)
    dist.all_reduce(rows)
    if RANK == 0:
        print("norms", " ".join(f"{v:.6f}" for v in rows.sqrt().flatten().tolist()))


def main():
    torch.set_num_threads(1)
    model = GPT()
    initial = {n: p.detach().double().numpy().copy() for n, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    data = torch.Generator().manual_seed(5)
    for step in range(3):
        tokens = torch.randint(VOCAB, (BATCH, SEQ + 1), generator=data)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = clip(model, 0.5)
        optimizer.step()
        if RANK == 0:
            print(f"step {step} loss {loss.item():.7f} norm {norm.item():.6f}")
    summary(model, initial)


main()
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
