"""Transformer with normalised queries and keys, made tensor and sequence parallel by plans of torch.distributed.tensor."""
import argparse
import time
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

warnings.filterwarnings("ignore")
parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "tp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--micro", type=int, default=1)
args = parser.parse_args()

VOCAB, DIM, HEADS, INNER, LAYERS, BATCH, LENGTH = 64, 32, 4, 64, 2, 4, 12
dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
DTYPE = getattr(torch, args.dtype)
mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tp",)) if args.layout == "tp" else None


class HeadNorm(nn.Module):
    """A norm of each head, whose weight the rank uses for its own heads only."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM // HEADS))

    def forward(self, x):
        weight = self.weight
        if isinstance(weight, DTensor):
            local = None if args.mutant == "head_norm" else [Partial()]  # @head_norm
            weight = weight.to_local(grad_placements=local)  # @head_norm
        return F.rms_norm(x, x.shape[-1:], eps=1e-5) * weight  # @head_norm


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.q_norm, self.k_norm = HeadNorm(), HeadNorm()
        self.wo = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        batch, length = x.shape[:2]
        q, k, v = (w(x).view(batch, length, -1, DIM // HEADS).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = nn.Linear(DIM, INNER, bias=False), nn.Linear(DIM, INNER, bias=False)
        self.w2 = nn.Linear(INNER, DIM, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(DIM), Attention()
        self.ffn_norm, self.feed_forward = nn.RMSNorm(DIM), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(DIM)
        self.output = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def parallelize(model):
    parallelize_module(model, mesh, {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    })  # fmt: skip
    for i, layer in enumerate(model.layers):
        plan = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
            "attention.wq": ColwiseParallel(),
            "attention.wk": ColwiseParallel(),
            "attention.wv": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
            "feed_forward.w1": ColwiseParallel(),
            "feed_forward.w3": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        }
        if args.mutant == "plain_norm" and i == 1:
            del plan["ffn_norm"]  # @plain_norm
        parallelize_module(layer, mesh, plan)
        for norm in (layer.attention.q_norm, layer.attention.k_norm):
            norm.weight = nn.Parameter(DTensor.from_local(norm.weight.data, mesh, [Replicate()]))


torch.manual_seed(23)
model = Transformer().to(DTYPE)
if mesh:
    parallelize(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, foreach=False)
whole = lambda t: t.full_tensor() if isinstance(t, DTensor) else t

for step in range(3):
    data = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(60 + step))
    total = 0.0
    for part in data.chunk(args.micro):
        logits = model(part[:, :-1])
        if mesh:
            logits = logits.redistribute(mesh, [Replicate()])  # @twice
            logits = logits.to_local(grad_placements=[Partial()] if args.mutant == "twice" else None)  # @twice
        wide = torch.promote_types(DTYPE, torch.float32)
        loss = F.cross_entropy(logits.flatten(0, 1).to(wide), part[:, 1:].flatten()) / args.micro
        loss.backward()
        total += loss.item()
    optimizer.step()  # @plain_norm
    size = sum(whole(p.detach()).double().abs().sum() for p in model.parameters())
    slope = sum(whole(p.grad).double().abs().sum() for p in model.parameters())
    optimizer.zero_grad()
    if RANK == 0:
        print(f"step {step} loss {total:.7f} sum {size.item():.7f} grad {slope.item():.7f}", flush=True)

dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
