"""Sequence parallelism as in DeepSpeed-Ulysses: attention has the whole sequence for some of the heads."""
import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

VOCAB, DIM, HEADS, DEPTH, ROWS, LENGTH, STEPS = 56, 32, 4, 2, 4, 16, 3


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        out = torch.empty_like(gradient)
        dist.all_to_all_single(out, gradient)
        return out


def to_heads(x, world):
    """[rows, part of the sequence, heads, size] to [rows, sequence, part of the heads, size]"""
    rows, part, heads, size = x.shape
    x = x.reshape(rows, part, world, heads // world, size).permute(2, 0, 1, 3, 4).contiguous()
    return AllToAll.apply(x).permute(1, 0, 2, 3, 4).reshape(rows, part * world, heads // world, size)


def to_sequence(x, world, swapped=False):
    """[rows, sequence, part of the heads, size] to [rows, part of the sequence, heads, size]"""
    rows, length, heads, size = x.shape
    x = x.reshape(rows, world, length // world, heads, size).permute(1, 0, 2, 3, 4).contiguous()
    x = AllToAll.apply(x)
    if swapped:
        return x.permute(1, 2, 3, 0, 4).reshape(rows, length // world, heads * world, size)
    return x.permute(1, 2, 0, 3, 4).reshape(rows, length // world, heads * world, size)


class Dropout(nn.Module):
    """Drops the same elements in all layouts: the mask of the whole sequence is drawn, and the rank's part is used."""

    def __init__(self, job, layer):
        super().__init__()
        self.job, self.layer = job, layer

    def forward(self, x):
        if not self.training or not self.job.args.dropout:
            return x
        draw = torch.Generator().manual_seed(1000 * self.job.step + self.layer)
        keep = torch.rand(ROWS, LENGTH, DIM, generator=draw) >= self.job.args.dropout
        part = 0 if self.job.args.mutant == "mask_part" else self.job.rank
        keep = keep.chunk(self.job.world, 1)[part]
        return x * keep.to(x.dtype) / (1 - self.job.args.dropout)


class Attention(nn.Module):
    def __init__(self, job):
        super().__init__()
        self.job = job
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, HEADS, DIM // HEADS).unbind(2)
        if self.job.args.layout == "ulysses":
            q, k, v = (to_heads(each, self.job.world) for each in (q, k, v))
        y = F.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v)), is_causal=True)
        y = y.transpose(1, 2)
        if self.job.args.layout == "ulysses":
            y = to_sequence(y, self.job.world, self.job.args.mutant == "heads_swapped")
        return self.proj(y.reshape(rows, length, DIM))


class Block(nn.Module):
    def __init__(self, job, index):
        super().__init__()
        self.norm1, self.attn, self.drop1 = nn.LayerNorm(DIM), Attention(job), Dropout(job, 2 * index)
        self.norm2, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
        self.drop2 = Dropout(job, 2 * index + 1)

    def forward(self, x):
        x = x + self.drop1(self.attn(self.norm1(x)))
        return x + self.drop2(self.down(F.gelu(self.up(self.norm2(x)))))


class Model(nn.Module):
    def __init__(self, job):
        super().__init__()
        self.job = job
        self.embed, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(Block(job, index) for index in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)
        nn.init.normal_(self.embed.weight, std=0.3)
        if job.args.tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens, places):
        x = self.embed(tokens) + self.pos(places)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.job.args.checkpoint else block(x)
        return self.head(self.norm(x))


class Job:
    def __init__(self, args):
        self.args, self.step = args, 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(31)
        self.model = Model(self).to(getattr(torch, args.dtype))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.15, momentum=0.9, nesterov=True)

    def part(self, x):
        return x.chunk(self.world, -1)[self.rank]

    def train(self):
        draw = torch.Generator().manual_seed(70 + self.step)
        batch = torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=draw)
        tokens, labels, places = self.part(batch[:, :-1]), self.part(batch[:, 1:]), self.part(torch.arange(LENGTH))
        logits = self.model(tokens, places)
        loss = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum") / (ROWS * LENGTH)
        loss.backward()
        once = self.args.mutant != "tied_twice"
        for name, p in self.model.named_parameters(remove_duplicate=once):
            dist.all_reduce(p.grad)
            if self.args.mutant == "norm_mean" and "norm" in name:
                p.grad /= self.world
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip or math.inf)
        self.optimizer.step()
        self.optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if self.rank == 0:
            print(f"step {self.step} loss {total.item():.6f} norm {norm.item():.6f}", flush=True)
        self.step += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="one", choices=["one", "ulysses"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--mutant", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    job = Job(args)
    for _ in range(STEPS):
        job.train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
