"""Ring attention: the sequence is divided over the ranks, and keys and values go around."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

VOCAB, DIM, HEADS, DEPTH, ROWS, LENGTH, STEPS = 50, 32, 4, 2, 4, 24, 3

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "ring"])
parser.add_argument("--dtype", default="float32")
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adamw"])
parser.add_argument("--mutant", default="")
args = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
share = LENGTH // world
span = slice(rank * share, (rank + 1) * share)


def pass_on(x, forwards):
    """Sends x to the next rank of the ring and receives from the previous one, or the other way round."""
    ahead, behind = (rank + 1) % world, (rank - 1) % world
    target, source = (ahead, behind) if forwards else (behind, ahead)
    got = torch.empty_like(x)
    request = dist.isend(x.contiguous(), target)
    dist.recv(got, source)
    request.wait()
    return got


class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return pass_on(x, True)

    @staticmethod
    def backward(ctx, gradient):
        return pass_on(gradient.contiguous(), args.mutant == "backward_shift")


def ring_attention(q, k, v):
    """Causal attention of the own queries to the keys and values of all ranks, with a running softmax."""
    pair = torch.stack([k, v])
    own = torch.arange(rank * share, (rank + 1) * share)
    top = torch.full(q.shape[:-1] + (1,), -1e30)
    weight, out = torch.zeros_like(top), torch.zeros(q.shape)
    for turn in range(world):
        owner = (rank - turn) % world
        if args.mutant == "mask" and turn:
            owner = (owner - 1) % world
        place = torch.arange(owner * share, (owner + 1) * share)
        scores = (q @ pair[0].transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(place[None, :] > own[:, None], -1e30)
        high = torch.maximum(top, scores.amax(-1, keepdim=True)).detach()
        terms, fade = torch.exp(scores - high), torch.exp(top - high)
        weight = weight * fade + terms.sum(-1, keepdim=True)
        out = out * fade + terms @ pair[1].float()
        top = high
        if turn < world - 1:
            pair = Shift.apply(pair)
    return (out / weight).to(q.dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        if args.layout == "one":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = ring_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(rows, length, DIM))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(DIM), Attention()
        self.norm2, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(3 * DIM, DIM)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.down(F.relu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens, places):
        x = self.embed(tokens) + self.pos(places)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        return self.head(self.norm(x))


torch.manual_seed(21)
model = Model().to(getattr(torch, args.dtype))
if args.optimizer == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for step in range(STEPS):
    draw = torch.Generator().manual_seed(300 + step)
    batch = torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=draw)
    labels = batch[:, 1:].clone()
    for row in range(ROWS):
        labels[row, : 5 + 2 * row] = -100  # the prompt
    tokens, labels = batch[:, :-1][:, span], labels[:, span]
    start = 0 if args.mutant == "positions" else rank * share
    logits = model(tokens, torch.arange(start, start + share))
    count = (labels >= 0).sum()
    if args.mutant != "own_count":
        dist.all_reduce(count)
    loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum") / count
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        if args.mutant == "own_count":
            p.grad /= world
    norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip or math.inf)
    optimizer.step()
    optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print(f"step {step} loss {total.item():.6f} norm {norm.item():.6f}", flush=True)
dist.destroy_process_group()
