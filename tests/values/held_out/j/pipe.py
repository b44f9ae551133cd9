"""A pipeline by hand: stages of blocks, micro-batches forward in order and backward in reverse order (GPipe).

The embedding of the first stage is the matrix of the last stage's head, too: each has a copy of it.
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, HEADS, DEPTH, ROWS, LENGTH, STEPS = 44, 32, 2, 4, 8, 10, 3

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "pipe"])
parser.add_argument("--dtype", default="float32")
parser.add_argument("--micro", type=int, default=4)
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adam"])
parser.add_argument("--mutant", default="")
args = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
dtype = getattr(torch, args.dtype)
first, last = rank == 0, rank == world - 1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.qkv, self.proj = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.norm2, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(3 * DIM, DIM)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, length, DIM))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Stage(nn.Module):
    """The blocks of this rank; all blocks, if there is one stage only."""

    def __init__(self):
        super().__init__()
        self.embed, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        nn.init.normal_(self.embed.weight, std=0.4)
        self.blocks = nn.ModuleDict({str(index): Block() for index in range(DEPTH)})
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)
        if world == 1:
            self.head.weight = self.embed.weight
            return
        with torch.no_grad():
            self.head.weight.copy_(self.embed.weight)
        for index in range(DEPTH):
            if index * world // DEPTH != rank:
                del self.blocks[str(index)]
        if not first:
            del self.embed, self.pos
        if not last:
            del self.norm, self.head

    def forward(self, x):
        if first:
            x = self.embed(x) + self.pos(torch.arange(LENGTH))
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if last else x


torch.manual_seed(5)
stage = Stage().to(dtype)
if args.optimizer == "sgd":
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
else:
    optimizer = torch.optim.Adam(stage.parameters(), lr=2e-3)
ends = dist.new_group([0, world - 1]) if world > 1 else None


def forward(tokens, labels):
    """One micro-batch through this stage: its input and its output, which is the loss in the last stage."""
    if first:
        x = tokens
    else:
        x = torch.empty(tokens.shape[0], LENGTH, DIM, dtype=dtype)
        dist.recv(x, rank - 1)
        x.requires_grad_()
    y = stage(x)
    if last:
        scale = 1 if args.mutant == "micro_sum" else args.micro
        return x, F.cross_entropy(y.float().flatten(0, 1), labels.flatten()) / scale
    dist.send(y.detach().contiguous(), rank + 1)
    return x, y


def backward(x, y):
    if last:
        y.backward()
    else:
        gradient = torch.empty_like(y)
        dist.recv(gradient, rank + 1)
        y.backward(gradient)
    if not first:
        dist.send(x.grad, rank - 1)


def clip():
    """The norm over all stages, with the tied matrix once."""
    counted = [p for name, p in stage.named_parameters() if world == 1 or name != "head.weight"]
    squares = torch.stack([p.grad.float().square().sum() for p in counted]).sum()
    if args.mutant != "clip_stage":
        dist.all_reduce(squares)
    norm = squares.sqrt()
    if args.clip:
        for p in stage.parameters():
            p.grad.mul_((args.clip / (norm + 1e-6)).clamp(max=1.0))
    return norm


for step in range(STEPS):
    draw = torch.Generator().manual_seed(800 + step)
    batch = torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=draw)
    running, total = [], torch.zeros(())
    for micro in batch.chunk(args.micro):
        running.append(forward(micro[:, :-1], micro[:, 1:]))
        if last:
            total += running[-1][1].detach()
    if args.mutant == "backward_order" and not last:
        order = running
    else:
        order = running[::-1]
    for x, y in order:
        backward(x, y)
    if ends and (first or last) and not (args.mutant == "tied_missing" and step >= 1):
        tied = stage.embed if first else stage.head
        dist.all_reduce(tied.weight.grad, group=ends)
    norm = clip()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total)
    if rank == 0:
        print(f"step {step} loss {total.item():.6f} norm {norm.item():.6f}", flush=True)
dist.destroy_process_group()
