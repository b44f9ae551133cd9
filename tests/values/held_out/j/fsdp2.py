"""A small causal transformer, on one rank or sharded by fully_shard: over all ranks (fsdp), or in groups (hsdp)."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

VOCAB, DIM, HEADS, DEPTH, ROWS, LENGTH, STEPS = 48, 32, 4, 3, 8, 12, 3


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.proj = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(rows, length, DIM))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(DIM), Attention()
        self.norm2 = nn.LayerNorm(DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, recompute):
        super().__init__()
        self.recompute = recompute
        self.embed = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.norm(x))


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def clip(model, args, group):
    """Clips the norm of all gradients to args.clip, from the shards of this rank."""
    if args.clip_by == "torch":
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    squares = torch.stack([local(p.grad).float().square().sum() for p in model.parameters()]).sum()
    if group is not None and args.mutant != "clip_local":
        dist.all_reduce(squares, group=group)
    norm = squares.sqrt()
    scale = (args.clip / (norm + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        local(p.grad).mul_(scale.to(p.dtype))
    return norm


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="one", choices=["one", "fsdp", "hsdp"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--clip-by", default="torch", choices=["torch", "hand"])
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--ema", type=float, default=0.0)
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adamw"])
    parser.add_argument("--mutant", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(7)
    model = Model(args.checkpoint).to(getattr(torch, args.dtype))
    data_rank, data_ranks, group = rank, world, None
    if args.layout == "fsdp":
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
        group = mesh.get_group()
    elif args.layout == "hsdp":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
        group = mesh.get_group("shard")
        if args.mutant == "same_data":
            data_rank = mesh.get_local_rank("shard")
        if args.mutant == "replicate_missing":
            mesh = mesh["shard"]
    if args.layout != "one":
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)

    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 3)
    average = {name: local(p).detach().clone() for name, p in model.named_parameters()} if args.ema else {}

    for step in range(STEPS):
        draw = torch.Generator().manual_seed(100 + step)
        batch = torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=draw)
        total = torch.zeros(())
        for index, micro in enumerate(batch.chunk(args.accumulate)):
            mine = micro.chunk(data_ranks)[data_rank]
            if args.layout != "one":
                last = 0 if args.mutant == "first_micro" else args.accumulate - 1
                model.set_requires_gradient_sync(index == last)
            logits = model(mine[:, :-1])
            loss = F.cross_entropy(logits.float().flatten(0, 1), mine[:, 1:].flatten()) / args.accumulate
            loss.backward()
            total += loss.detach()
        norm = clip(model, args, group) if args.clip else torch.zeros(())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name in average:
                    average[name].lerp_(local(p), 1 - args.ema)
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item() / world:.6f} norm {norm.item():.6f}", flush=True)

    if args.ema:
        with torch.no_grad():
            for name, p in model.named_parameters():
                local(p).copy_(average[name])
    model.eval()
    with torch.no_grad():
        draw = torch.Generator().manual_seed(999)
        tokens = torch.randint(VOCAB, (4, LENGTH + 1), generator=draw)
        loss = F.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())
    if rank == 0:
        print(f"evaluation {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
