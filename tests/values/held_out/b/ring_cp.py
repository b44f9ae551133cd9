"""Context parallel training by hand: keys and values go around a ring, softmax is accumulated online."""
import argparse
import math
import time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "cp", "zigzag"])
parser.add_argument("--mutant", default="none")
parser.add_argument("--dtype", default="float32")
args = parser.parse_args()
LENGTH, DIM, HEADS = 32, 32, 2


def positions(rank, world):
    if args.layout == "zigzag":
        parts = torch.arange(LENGTH).chunk(2 * world)
        return torch.cat([parts[rank], parts[2 * world - 1 - rank]])
    return torch.arange(LENGTH).chunk(world)[rank]


class Rotate(torch.autograd.Function):
    @staticmethod
    def exchange(x, shift):
        rank, world = dist.get_rank(), dist.get_world_size()
        out, x = torch.empty_like(x, memory_format=torch.contiguous_format), x.contiguous()
        send = dist.P2POp(dist.isend, x, (rank + shift) % world)
        receive = dist.P2POp(dist.irecv, out, (rank - shift) % world)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()
        return out

    @staticmethod
    def forward(ctx, x):
        return Rotate.exchange(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return Rotate.exchange(grad, -1)


def ring_attention(q, k, v, index):
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = positions(rank, world)
    top = torch.full((*q.shape[:-1], 1), -1e30, dtype=q.dtype)
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    kv = torch.stack([k, v])
    for turn in range(world):
        if turn:
            kv = Rotate.apply(kv)
        source = (rank - turn) % world
        if args.mutant == "mask_source" and index == 1:
            source = (rank + turn) % world
        there = positions(source, world)
        scores = q @ kv[0].transpose(-1, -2) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(mine[:, None] < there[None, :], -1e30)  # @mask_source
        new = torch.maximum(top, scores.amax(-1, keepdim=True)).detach()
        shrink, weights = torch.exp(top - new), torch.exp(scores - new)
        total = total * shrink + weights.sum(-1, keepdim=True)
        if args.mutant == "no_rescale" and index == 0:
            out = out + weights @ kv[1]  # @no_rescale
        else:
            out = out * shrink + weights @ kv[1]
        top = new
    return out / total


class Block(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.index = index
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (3 * self.qkv(self.norm1(x))).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if args.layout == "one":
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            a = ring_attention(q, k, v, self.index)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, DIM))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(50, DIM), nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList([Block(i) for i in range(2)])
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 50, bias=False)

    def forward(self, ids, where):
        x = self.embed(ids) + self.place(where)  # @local_positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    model = Model().to(getattr(torch, args.dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(3):
        ids = torch.randint(0, 50, (3, LENGTH + 1), generator=torch.Generator().manual_seed(step))
        at = positions(rank, world)
        where = at
        if args.mutant == "local_positions" and step >= 1:
            where = torch.arange(len(at))  # @local_positions
        logits = model(ids[:, at], where)
        logits = logits.float() if args.dtype == "bfloat16" else logits
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, at + 1].flatten(), reduction="sum") / (3 * LENGTH)
        loss.backward()
        for name, q in model.named_parameters():
            if args.mutant == "norm_local" and name == "blocks.1.norm1.weight":
                continue
            dist.all_reduce(q.grad)
        optimizer.step()
        optimizer.zero_grad()
        shown = loss.detach().double()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step} loss {shown.item():.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # threads of gloo may need the interpreter once more


if __name__ == "__main__":
    main()
