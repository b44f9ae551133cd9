"""Language model in DistributedDataParallel: accumulation, padding, a communication hook, clipping, a schedule."""
import argparse
import contextlib
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "ddp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--verify", action="store_true")
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
WIDE = torch.promote_types(DTYPE, torch.float32)  # of the loss
VOCAB, DIM, HEADS, LAYERS, LENGTH, BATCH = 48, 32, 4, 3, 12, 24


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(DIM), Attention()
        self.norm2, self.mlp = nn.LayerNorm(DIM), MLP()

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(LENGTH, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        self.length_head = nn.Linear(DIM, 16)  # an auxiliary task of even steps

    def forward(self, tokens, auxiliary):
        x = self.tok(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if args.checkpoint else layer(x)
        x = self.norm(x)
        return self.head(x), self.length_head(x[:, 0]) if auxiliary else None


def batch(step):
    g = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=g)
    lengths = torch.randint(3, LENGTH + 1, (BATCH,), generator=g)
    lengths[: BATCH // 3] = LENGTH  # long ones come first
    target = tokens[:, 1:].clone()
    target[torch.arange(LENGTH)[None] >= lengths[:, None]] = -100
    return tokens[:, :-1], target, lengths


def average_hook(world, bucket):
    flat = bucket.buffer()
    if args.mutant != "hook_scale" or bucket.index() == 0:
        flat.div_(world)  # @hook_scale
    future = dist.all_reduce(flat, async_op=True).get_future()  # @hook_scale
    return future.then(lambda f: f.value()[0])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = net = Model().to(DTYPE)
    if args.layout == "ddp":
        model = DistributedDataParallel(net, bucket_cap_mb=0.03, find_unused_parameters=True)
        model.register_comm_hook(world, average_hook)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.1, eps=1e-5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 / (1 + 0.3 * s))
    for step in range(3):
        tokens, target, lengths = batch(step)
        count = (target != -100).sum()
        total = torch.zeros((), dtype=WIDE)
        for i, rows in enumerate(torch.arange(BATCH).chunk(args.accumulate)):
            rows = rows.chunk(world)[rank]
            last = i == args.accumulate - 1
            if args.mutant == "sync_never":
                last = i == args.accumulate
            sync = contextlib.nullcontext() if last or model is net else model.no_sync()  # @sync_never
            with sync:
                logits, guess = model(tokens[rows], step % 2 == 0)
                loss = F.cross_entropy(logits.flatten(0, 1).to(WIDE), target[rows].flatten(), reduction="sum")
                if args.mutant == "local_tokens":
                    loss = loss / (target[rows] != -100).sum() / args.accumulate  # @local_tokens
                else:
                    loss = loss * world / count  # DistributedDataParallel takes the mean over ranks
                if guess is not None:
                    loss = loss + 0.1 * F.cross_entropy(guess.to(WIDE), lengths[rows]) / args.accumulate
                loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # @sync_never
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item() / world:.7f}", flush=True)
    if args.verify and rank == 0:
        print(f"sum {sum(p.detach().double().abs().sum().item() for p in net.parameters()):.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
