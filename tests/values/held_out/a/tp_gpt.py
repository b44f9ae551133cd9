"""A small GPT, tensor parallel as in Megatron-LM: plain tensors and two autograd functions."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "tp"])
parser.add_argument("--mutant", default="none")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--checkpoint", action="store_true")
args = parser.parse_args()

VOCAB, DIM, HEADS, LAYERS, SEQ, BATCH = 48, 32, 4, 3, 16, 4


class CopyToParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, reduce=True):
        ctx.reduce = reduce
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        if ctx.reduce:
            dist.all_reduce(grad)
        return grad, None


class ReduceFromParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class ColumnLinear(nn.Module):
    def __init__(self, full, parts=1, contiguous=False, reduce=True):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        self.reduce = reduce

        def shard(t):
            if contiguous:
                return t.chunk(world)[rank]
            return torch.cat([part.chunk(world)[rank] for part in t.chunk(parts)])

        self.weight = nn.Parameter(shard(full.weight.detach()).clone())
        self.bias = nn.Parameter(shard(full.bias.detach()).clone())

    def forward(self, x):
        x = CopyToParallel.apply(x, self.reduce)
        return F.linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    def __init__(self, full, bias_inside=False):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        self.bias_inside = bias_inside
        self.weight = nn.Parameter(full.weight.detach().chunk(world, 1)[rank].clone())
        self.bias = nn.Parameter(full.bias.detach().clone())

    def forward(self, x):
        if self.bias_inside:
            return ReduceFromParallel.apply(F.linear(x, self.weight, self.bias))
        return ReduceFromParallel.apply(F.linear(x, self.weight)) + self.bias


class Attention(nn.Module):
    def __init__(self, contiguous):
        super().__init__()
        self.qkv = ColumnLinear(nn.Linear(DIM, 3 * DIM), 3, contiguous)
        self.proj = RowLinear(nn.Linear(DIM, DIM))

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, -1, DIM // HEADS).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, s, -1))


class MLP(nn.Module):
    def __init__(self, reduce, bias_inside):
        super().__init__()
        self.up = ColumnLinear(nn.Linear(DIM, 2 * DIM), reduce=reduce)
        self.down = RowLinear(nn.Linear(2 * DIM, DIM), bias_inside)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, i):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = Attention(args.mutant == "qkv_contiguous" and i == 1)
        self.mlp = MLP(not (args.mutant == "copy_backward" and i == 1), args.mutant == "bias_inside" and i == 2)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        self.layers = nn.ModuleList(Block(i) for i in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if args.checkpoint and self.training else layer(x)
        return self.head(self.norm(x))


def loss_of(model, ids):
    logits = model(ids[:, :-1]).flatten(0, 1)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), ids[:, 1:].flatten())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = GPT().to(getattr(torch, args.dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    data = torch.Generator().manual_seed(1)
    for step in range(3):
        ids = torch.randint(VOCAB, (BATCH, SEQ + 1), generator=data)
        loss = loss_of(model, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f}")
    model.eval()
    with torch.no_grad():
        ids = torch.randint(VOCAB, (BATCH, SEQ + 1), generator=data)
        loss = loss_of(model, ids)
    print(f"FINAL {dist.get_rank()} {loss.item():.6f}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
