"""A classifier of sequences with dtensor_core: tensor parallel by a plan, data parallel by hand."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from dtensor_core import DTensor, Shard, init_device_mesh
from dtensor_core.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

parser = argparse.ArgumentParser()
parser.add_argument("--layout", choices=["one", "tp", "dptp"], default="one")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--mutant", default="")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--evaluate", action="store_true")
args = parser.parse_args()
V, D, T, B, HEADS, CLASSES = 30, 32, 8, 8, 4, 10

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
dp = 2 if args.layout == "dptp" else 1
tp = world // dp if args.layout != "one" else 1
mesh = init_device_mesh("cpu", (dp, world // dp), mesh_dim_names=("dp", "tp"))
dp_group, tp_group = mesh.get_group("dp"), mesh.get_group("tp")
me = rank // tp if dp > 1 else 0


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.out = nn.Linear(D, D)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, -1, D // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        if args.mutant == "half_heads" and mesh.get_local_rank("tp") == 1:
            k = k.roll(1, 1)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, t, -1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = Attention()
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, CLASSES)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.mean(1)))


def local(x):
    return x.to_local() if isinstance(x, DTensor) else x


def is_sharded(p):
    return isinstance(p, DTensor) and any(isinstance(s, Shard) for s in p.placements)


def reduce_gradients(model):
    if dp == 1:
        return
    for name, p in model.named_parameters():
        g = local(p.grad)
        if args.mutant == "skip_row" and name.endswith("out.bias"):
            continue
        if args.mutant == "group" and "norm" in name:
            dist.all_reduce(g, group=tp_group)
        else:
            dist.all_reduce(g, group=dp_group)
        g.div_(dp)


def clip(model, limit):
    split, whole = torch.zeros(()), torch.zeros(())
    for p in model.parameters():
        square = local(p.grad).float().pow(2).sum()
        if is_sharded(p):
            split += square
        else:
            whole += square
    if tp > 1 and args.mutant != "clip_tp":
        dist.all_reduce(split, group=tp_group)
    norm = (split + whole).sqrt()
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        local(p.grad).mul_(factor)
    return norm


torch.manual_seed(2)
model = Classifier().to(getattr(torch, args.dtype))
if args.layout != "one":
    plan = {"q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "out": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block.attn, mesh["tp"], plan)
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
data = torch.Generator().manual_seed(9)
for step in range(3):
    ids = torch.randint(V, (B, T), generator=data)
    labels = torch.randint(CLASSES, (B,), generator=data)
    mine = rank % dp if args.mutant == "data_rank" else me
    logits = model(ids.chunk(dp)[mine])
    loss = F.cross_entropy(logits.float(), labels.chunk(dp)[mine])
    if args.mutant == "mean_twice":
        loss = loss / dp
    optimizer.zero_grad()
    loss.backward()
    reduce_gradients(model)
    norm = clip(model, args.clip or 1e9)
    optimizer.step()
    shown = loss.detach().clone()
    if dp > 1:
        dist.all_reduce(shown, group=dp_group)
        shown /= dp
    whole = [p for k, p in model.named_parameters() if k.startswith(("tok", "pos", "head")) or "norm" in k]
    size = sum(local(p).detach().float().norm().item() for p in whole)
    print(f"rank {rank} step {step} loss {shown.item():.6f} norm {norm.item():.6f} size {size:.6f}", flush=True)
    if args.evaluate:
        model.eval()
        with torch.no_grad():
            right = (model(ids.chunk(dp)[me]).argmax(-1) == labels.chunk(dp)[me]).sum()
        if dp > 1:
            dist.all_reduce(right, group=dp_group)
        model.train()
        print(f"rank {rank} step {step} right {right.item()}", flush=True)
dist.barrier()
dist.destroy_process_group()
