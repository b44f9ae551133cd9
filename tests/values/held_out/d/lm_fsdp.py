"""Language model: FSDP2, HSDP on a 2-D mesh, or FSDP2 with tensor parallel blocks."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "fsdp", "hsdp", "fsdp_tp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--tied", action="store_true")
parser.add_argument("--schedule", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--optimizer", default="adamw", choices=["adamw", "sgd"])
args = parser.parse_args()

VOCABULARY, DIM, HEADS, LAYERS, BATCH, LENGTH, STEPS = 48, 32, 4, 3, 8, 12, 3


class Attention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x):
        batch, length, _ = x.shape
        qkv = self.qkv(x)  # features are ordered by head, so that column parallel ranks have whole heads
        if args.mutant == "split_qkv" and self.layer == 1:
            q, k, v = (t.reshape(batch, length, -1, DIM // HEADS) for t in qkv.chunk(3, -1))  # @split_qkv
        else:
            q, k, v = qkv.view(batch, length, -1, 3, DIM // HEADS).unbind(3)
        y = F.scaled_dot_product_attention(  # @split_qkv
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)  # @split_qkv
        return self.proj(y.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.attn = Attention(layer)
        self.norm2 = nn.LayerNorm(DIM)
        self.mlp = MLP()

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, DIM)
        self.pos = nn.Embedding(LENGTH, DIM)
        self.layers = nn.ModuleList(Block(i) for i in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCABULARY, bias=False)
        if args.tied:
            self.head.weight = self.tok.weight

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if args.checkpoint else layer(x)
        return self.head(self.norm(x))


def parallelize(model, world):
    if args.layout == "fsdp":
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
        data = mesh
    elif args.layout == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
        data = mesh
    else:
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        data = mesh["dp"]
        for layer in model.layers:
            parallelize_module(layer, mesh["tp"], {
                "attn.qkv": ColwiseParallel(), "attn.proj": RowwiseParallel(),
                "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()})
    for i, layer in enumerate(model.layers):
        if args.mutant == "shard_only" and i == 1:
            fully_shard(layer, mesh=mesh["shard"])  # @shard_only
        else:
            fully_shard(layer, mesh=data)
    fully_shard(model, mesh=data)
    if args.mutant == "divide_factor":
        model.layers[2].set_force_sum_reduction_for_comms(True)
        model.layers[2].set_gradient_divide_factor(1.0)  # @divide_factor
    if args.layout == "fsdp_tp":
        return world // 2, dist.get_rank() // 2
    return world, dist.get_rank()


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dtype = getattr(torch, args.dtype)
    model = LM().to(dtype)
    parts, part = parallelize(model, dist.get_world_size()) if args.layout != "one" else (1, 0)
    if args.compile:
        model.layers[0].mlp.compile(backend="aot_eager")
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, eps=1e-5, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + i) if args.schedule else 1.0)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
        mine = tokens.chunk(parts)[part]
        total = torch.zeros(())
        for i, micro in enumerate(mine.chunk(args.accumulate)):
            last = i == args.accumulate - 1
            if args.layout != "one" and args.accumulate > 1:
                model.set_requires_gradient_sync(not last if args.mutant == "sync_first" else last)  # @sync_first
            logits = model(micro[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), micro[:, 1:].flatten()) / args.accumulate
            loss.backward()  # @sync_first @shard_only @divide_factor
            total += loss.detach().float()
        if args.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()  # @sync_first @shard_only @divide_factor
        schedule.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"loss {step} {total.item() / dist.get_world_size():.7f}", flush=True)
    with torch.no_grad():
        check = sum((full(p).double().flatten() * torch.arange(p.numel()).cos()).sum() for p in model.parameters())
    if dist.get_rank() == 0:
        print(f"check {check.item():.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)


main()
