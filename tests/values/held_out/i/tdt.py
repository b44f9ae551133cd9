"""A decoder whose parameters are DTensors of torch.distributed.tensor, with a few local parts."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--layout", choices=["one", "tp"], default="one")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--mutant", default="")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--checkpoint", action="store_true")
args = parser.parse_args()
V, D, T, B, HEADS, LAYERS = 40, 32, 10, 6, 4, 2

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
TP = args.layout == "tp"
mesh = init_device_mesh("cpu", (n,), mesh_dim_names=("tp",)) if TP else None


def distribute(module, name, placement):
    if TP:
        full = getattr(module, name).detach()
        setattr(module, name, nn.Parameter(distribute_tensor(full, mesh, [placement])))


def replicated(x):
    return DTensor.from_local(x, mesh, [Replicate()], run_check=False) if TP else x


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Parameter(torch.randn(3, D, D) * D**-0.5)
        self.out = nn.Parameter(torch.randn(D, D) * D**-0.5)

    def forward(self, x):
        b, t, _ = x.shape
        qkv, heads = self.qkv, HEADS
        if TP:
            grads = [Replicate()] if args.mutant == "to_local" else [Partial()]
            x = x.to_local(grad_placements=grads)
            qkv, heads = qkv.to_local(), HEADS // n
        y = F.linear(x, qkv.flatten(0, 1))
        q, k, v = y.view(b, t, 3, heads, D // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(b, t, -1)
        if not TP:
            return F.linear(y, self.out)
        y = DTensor.from_local(y, mesh, [Shard(2)], run_check=False)
        y = F.linear(y, self.out)
        return y.redistribute(mesh, [Replicate()])


class Feed(nn.Module):
    """The hidden units are divided by their root mean square."""

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(3 * D, D) * D**-0.5)
        self.scale = nn.Parameter(torch.ones(3 * D))
        self.down = nn.Parameter(torch.randn(D, 3 * D) * (3 * D) ** -0.5)

    def forward(self, x):
        h = F.silu(F.linear(x, self.up))
        if not TP:
            square = h.pow(2).mean(-1, keepdim=True)
            return F.linear(h * (square + 1e-5).rsqrt() * self.scale, self.down)
        h = h.redistribute(mesh, [Shard(2)]).to_local()
        width = h.shape[-1] if args.mutant == "rms_local" else 3 * D
        square = h.pow(2).sum(-1, keepdim=True) / width
        if args.mutant != "rms_local":
            square = DTensor.from_local(square, mesh, [Partial()], run_check=False)
            square = square.redistribute(mesh, [Replicate()]).to_local(grad_placements=[Partial()])
        h = h * (square + 1e-5).rsqrt() * self.scale.to_local()
        y = F.linear(h, self.down.to_local())
        kind = Replicate() if args.mutant == "as_replicate" else Partial()
        y = DTensor.from_local(y, mesh, [kind], run_check=False)
        return y.redistribute(mesh, [Replicate()])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn, self.feed = Attention(), Feed()

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.pos = nn.Parameter(torch.randn(T, D) * 0.3)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        x = self.head(self.norm(x))
        return x.redistribute(mesh, [Replicate()]) if TP else x


torch.manual_seed(0)
model = Decoder().to(getattr(torch, args.dtype))
for module in model.modules():
    if isinstance(module, Attention):
        distribute(module, "qkv", Shard(1))
        distribute(module, "out", Shard(1))
    elif isinstance(module, Feed):
        distribute(module, "up", Shard(0))
        distribute(module, "scale", Shard(0))
        distribute(module, "down", Shard(1))
    elif isinstance(module, nn.LayerNorm):
        distribute(module, "weight", Replicate())
        distribute(module, "bias", Replicate())
    elif isinstance(module, nn.Embedding):
        distribute(module, "weight", Replicate())
    elif isinstance(module, nn.Linear):
        distribute(module, "weight", Shard(0))
distribute(model, "pos", Replicate())
if TP and args.mutant == "init_rank" and rank == 1:
    torch.manual_seed(rank)
    with torch.no_grad():
        model.pos.to_local().copy_(torch.randn(T, D) * 0.3)

optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
data = torch.Generator().manual_seed(21)
for step in range(3):
    tokens = torch.randint(V, (B, T + 1), generator=data)
    logits = model(replicated(tokens[:, :-1]))
    if TP:
        logits = logits.to_local()
    loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    if TP and args.mutant == "loss_div" and step >= 1:
        loss = loss / n
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip or 1e9, foreach=False)
    norm = norm.full_tensor() if TP else norm
    optimizer.step()
    size = 0.0
    for p in model.parameters():
        size += (p.detach().full_tensor() if TP else p.detach()).float().norm().item()
    print(f"rank {rank} step {step} loss {loss.item():.6f} norm {norm.item():.6f} size {size:.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
