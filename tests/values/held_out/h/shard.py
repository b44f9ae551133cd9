"""Language model with fully_shard: FSDP2, HSDP, and groups that average their weights every second step."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "fsdp", "hsdp", "local"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
VOCAB, DIM, HEADS, LENGTH, BATCH = 40, 32, 4, 10, 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(DIM), Attention()
        self.norm2 = nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(0.5 * torch.randn(LENGTH, DIM))
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos  # @ignored
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        return self.head(self.norm(x))


def batch(step):
    g = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=g)
    return tokens[:, :-1], tokens[:, 1:]


def average_weights(net, mesh):
    group = mesh.get_group("shard" if args.mutant == "average_group" else "replicate")  # @average_group
    for p in net.parameters():
        local = p.detach().to_local()
        dist.all_reduce(local, group=group)  # @average_group
        local.div_(dist.get_world_size(group))  # @average_group


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Model().to(DTYPE)
    mesh = None
    if args.layout != "one":
        if args.layout == "fsdp":
            mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
        else:
            mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
        sub = mesh["shard"] if args.layout == "local" else mesh
        for block in net.blocks:
            fully_shard(block, mesh=sub)
        ignored = {net.pos} if args.mutant == "ignored" else None
        fully_shard(net, mesh=sub, ignored_params=ignored)  # @ignored
        if args.mutant == "divide":
            net.blocks[1].set_force_sum_reduction_for_comms(True)  # @divide
            net.blocks[1].set_gradient_divide_factor(1.0)  # @divide
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, eps=1e-5)
    if args.layout == "local":
        optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    for step in range(args.steps):
        tokens, target = batch(step)
        total = torch.zeros(())
        parts = torch.arange(BATCH).chunk(args.accumulate)
        for i, rows in enumerate(parts):
            if mesh is not None:
                last = i == len(parts) - 1
                if args.layout == "hsdp":
                    recurse = not (last and args.mutant == "no_all_reduce")  # @no_all_reduce
                    net.set_requires_all_reduce(last, recurse=recurse)  # @no_all_reduce
                else:
                    net.set_requires_gradient_sync(last)
            index = rank
            if args.mutant == "same_data":
                index = mesh.get_local_rank("shard")  # @same_data
            rows = rows.chunk(world)[index]  # @same_data
            logits = net(tokens[rows])  # @same_data
            loss = F.cross_entropy(logits.flatten(0, 1).float(), target[rows].flatten()) / args.accumulate
            loss.backward()  # @divide @no_all_reduce @ignored
            total += loss.detach()
        if args.clip:
            nn.utils.clip_grad_norm_(net.parameters(), args.clip)
        optimizer.step()  # @divide @no_all_reduce @ignored
        optimizer.zero_grad()
        if args.layout == "local" and step % 2 == 1:
            average_weights(net, mesh)  # @average_group
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item() / world:.6f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


main()
