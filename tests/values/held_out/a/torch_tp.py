"""An encoder with ALiBi, tensor and sequence parallel with torch.distributed.tensor.parallel."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

TAGS, WIDTH, HEADS, LENGTH = 12, 32, 4, 16


class AlibiAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.first_head = 0

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        b, s, width = q.shape
        heads = width * HEADS // WIDTH
        q, k, v = (t.view(b, s, heads, -1).transpose(1, 2) for t in (q, k, v))
        slopes = 0.5 ** torch.arange(1, HEADS + 1)[self.first_head:self.first_head + heads]
        places = torch.arange(s)
        bias = -slopes[:, None, None] * (places[:, None] - places).abs()
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(y.transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn_norm, self.attn = nn.LayerNorm(WIDTH), AlibiAttention()
        self.ff_norm = nn.LayerNorm(WIDTH)
        self.ff = nn.Sequential(nn.Linear(WIDTH, 64), nn.SiLU(), nn.Linear(64, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        return x + self.ff(self.ff_norm(x))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(64, WIDTH)
        self.encoder = nn.ModuleList([EncoderLayer(), EncoderLayer()])
        self.final_norm = nn.LayerNorm(WIDTH)
        self.tags = nn.Linear(WIDTH, TAGS)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.encoder:
            x = layer(x)
        return self.tags(self.final_norm(x))


def apply_tp(model, mutant):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "tags": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    })
    if mutant != "norm_plain":
        parallelize_module(model, mesh, {"final_norm": SequenceParallel(use_local_output=True)})
    for number, layer in enumerate(model.encoder):
        parallelize_module(layer, mesh, {
            "attn_norm": SequenceParallel(use_local_output=True),
            "attn": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=False),
            "attn.query": ColwiseParallel(),
            "attn.key": ColwiseParallel(),
            "attn.value": ColwiseParallel(),
            "attn.out": RowwiseParallel(output_layouts=Shard(1)),
            "ff_norm": SequenceParallel(use_local_output=True),
            "ff": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=False),
            "ff.0": ColwiseParallel(),
            "ff.2": RowwiseParallel(output_layouts=Shard(1)),
        })
        if not (mutant == "alibi_heads" and number == 1):
            layer.attn.first_head = mesh.get_local_rank() * HEADS // mesh.size()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="one", choices=["one", "tp"])
    parser.add_argument("--mutant", default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(17)
    model = Tagger()
    if args.layout == "tp":
        apply_tp(model, args.mutant)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3, eps=1e-3)
    g = torch.Generator().manual_seed(18)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for step in range(3):
        ids = torch.randint(64, (3, LENGTH), generator=g)
        loss = criterion(model(ids).flatten(0, 1), (ids % TAGS).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        ids = torch.randint(64, (3, LENGTH), generator=g)
        loss = criterion(model(ids).flatten(0, 1), (ids % TAGS).flatten())
    print(f"FINAL {dist.get_rank()} {loss.item():.6f}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
