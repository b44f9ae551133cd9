"""Ring attention: ranks hold parts of the sequence, keys and values travel around."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "ring"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--dropout", type=float, default=0.0)
args = parser.parse_args()

VOCABULARY, DIM, HEADS, LAYERS, BATCH, LENGTH, STEPS = 40, 32, 4, 2, 4, 24, 3


def shift(tensor, by):
    """Send to the rank `by` further and receive from the one as far before."""
    rank, world = dist.get_rank(), dist.get_world_size()
    output = torch.empty_like(tensor)
    operations = [dist.P2POp(dist.isend, tensor.contiguous(), (rank + by) % world),
                  dist.P2POp(dist.irecv, output, (rank - by) % world)]
    for work in dist.batch_isend_irecv(operations):  # @same_direction
        work.wait()
    return output


class RingShift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, layer):
        ctx.layer = layer
        return shift(tensor, 1)

    @staticmethod
    def backward(ctx, gradient):
        if args.mutant == "same_direction" and ctx.layer == 1:
            return shift(gradient, 1), None  # @same_direction
        return shift(gradient, -1), None


class RingCore(nn.Module):
    """Softmax attention over blocks, with running maximum, sum and output."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, q, k, v):
        rank, world = dist.get_rank(), dist.get_world_size()
        length = q.shape[2]
        rows = rank * length + torch.arange(length)
        top = q.new_full((*q.shape[:-1], 1), -1e4)
        total, output = torch.zeros_like(top), torch.zeros_like(q)
        kv = torch.stack([k, v])
        for i in range(world):
            source = (rank - i) % world
            if args.mutant == "mask_source" and self.layer == 1:
                source = (rank + i) % world  # @mask_source
            columns = source * length + torch.arange(length)
            k, v = kv.unbind()
            scores = q @ k.mT / q.shape[-1] ** 0.5
            scores = scores.masked_fill(rows[:, None] < columns, -1e4)  # @mask_source
            new = torch.maximum(top, scores.amax(-1, keepdim=True)).detach()  # @mask_source
            weights = (scores - new).exp()  # @mask_source
            scale = (top - new).exp()
            total = total * scale + weights.sum(-1, keepdim=True)  # @mask_source
            output = output * scale + weights @ v  # @mask_source
            top = new
            if i < world - 1:
                kv = RingShift.apply(kv, self.layer)  # @same_direction
        return output / total  # @mask_source


class Attention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.q = nn.Linear(DIM, DIM, bias=False)
        self.k = nn.Linear(DIM, DIM, bias=False)
        self.v = nn.Linear(DIM, DIM, bias=False)
        self.core = RingCore(layer)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (f(x).view(batch, length, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.proj(self.core(q * 2, k, v).transpose(1, 2).reshape(batch, length, DIM))


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.attn = Attention(layer)
        self.norm2 = nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))
        self.generator = torch.Generator().manual_seed(100 + layer)

    def drop(self, x):
        """Dropout with a mask of the whole sequence, of which the rank takes its own part."""
        if not args.dropout:
            return x
        mask = torch.rand(BATCH, LENGTH, DIM, generator=self.generator) >= args.dropout
        return x * mask.chunk(dist.get_world_size(), 1)[dist.get_rank()] / (1 - args.dropout)

    def forward(self, x):
        x = x + self.drop(self.attn(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, DIM)
        self.pos = nn.Embedding(LENGTH, DIM)
        self.layers = nn.ModuleList(Block(i) for i in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCABULARY)

    def forward(self, tokens):
        offset = dist.get_rank() * tokens.shape[1]
        if args.mutant == "local_positions":
            offset = 0  # @local_positions
        x = self.tok(tokens) + self.pos(offset + torch.arange(tokens.shape[1]))  # @local_positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def main():
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    model = LM().to(getattr(torch, args.dtype))
    with torch.no_grad():
        model.pos.weight.mul_(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, eps=1e-5)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
        inputs, targets = (t.chunk(world, 1)[rank] for t in (tokens[:, :-1], tokens[:, 1:]))
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / (BATCH * LENGTH)
        loss.backward()
        if args.layout == "ring":
            for p in model.parameters():
                dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().float()
        dist.all_reduce(total)
        if rank == 0:
            print(f"loss {step} {total.item():.7f}", flush=True)
    check = sum((p.detach().double().flatten() * torch.arange(p.numel()).cos()).sum() for p in model.parameters())
    if rank == 0:
        print(f"check {check.item():.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
