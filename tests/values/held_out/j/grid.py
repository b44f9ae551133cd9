"""Data and tensor parallelism by hand, on a grid of ranks: rank = data index * tensor size + tensor index."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

VOCAB, DIM, HEADS, DEPTH, ROWS, LENGTH, STEPS = 52, 32, 4, 2, 8, 8, 3

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "grid"])
parser.add_argument("--tensor", type=int, default=2, help="ranks of a tensor parallel group")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adamw"])
parser.add_argument("--mutant", default="")
args = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
tensors = args.tensor if args.layout == "grid" else 1
datas = world // tensors
data, place = rank // tensors, rank % tensors
tensor_groups = [dist.new_group([d * tensors + t for t in range(tensors)]) for d in range(datas)]
data_groups = [dist.new_group([d * tensors + t for d in range(datas)]) for t in range(tensors)]
tensor_group, data_group = tensor_groups[data], data_groups[place]


class Copy(torch.autograd.Function):
    """Before a layer divided by columns: the gradient is a sum over the tensor group."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=tensor_group)
        return gradient


class Reduce(torch.autograd.Function):
    """After a layer divided by rows: the output is a sum over the tensor group."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x, group=tensor_group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Columns(nn.Module):
    def __init__(self, inputs, outputs, parts=1, copy=True):
        super().__init__()
        weight, bias = torch.randn(outputs, inputs) * inputs**-0.5, torch.randn(outputs) * 0.02
        weight = weight.view(parts, -1, inputs).chunk(tensors, 1)[place].reshape(-1, inputs)
        self.weight = nn.Parameter(weight.clone())
        self.bias = nn.Parameter(bias.view(parts, -1).chunk(tensors, 1)[place].reshape(-1).clone())
        self.copy = copy

    def forward(self, x):
        return F.linear(Copy.apply(x) if self.copy else x, self.weight, self.bias)


class Rows(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        weight = torch.randn(outputs, inputs) * inputs**-0.5
        self.weight = nn.Parameter(weight.chunk(tensors, 1)[place].clone())
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        if args.mutant == "bias_early":
            return Reduce.apply(F.linear(x, self.weight, self.bias))
        return Reduce.apply(F.linear(x, self.weight)) + self.bias


class Block(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.norm1, self.qkv, self.proj = nn.LayerNorm(DIM), Columns(DIM, 3 * DIM, 3), Rows(DIM, DIM)
        self.norm2, self.down = nn.LayerNorm(DIM), Rows(4 * DIM, DIM)
        self.up = Columns(DIM, 4 * DIM, copy=not (args.mutant == "copy_missing" and index == 1))

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, HEADS // tensors, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, length, -1))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block(index) for index in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        return self.head(self.norm(x))


torch.manual_seed(37)
model = Model().to(getattr(torch, args.dtype))
divided = {id(p) for m in model.modules() if isinstance(m, Columns) for p in m.parameters()}
divided |= {id(m.weight) for m in model.modules() if isinstance(m, Rows)}
if args.optimizer == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)


def clip():
    """The norm of the whole gradient: parts are added over the tensor group, replicas count once."""
    parts, replicas = torch.zeros(()), torch.zeros(())
    for p in model.parameters():
        square = p.grad.float().square().sum()
        if id(p) in divided or args.mutant == "clip_replicas":
            parts += square
        else:
            replicas += square
    dist.all_reduce(parts, group=tensor_group)
    norm = (parts + replicas).sqrt()
    if args.clip:
        for p in model.parameters():
            p.grad.mul_((args.clip / (norm + 1e-6)).clamp(max=1.0))
    return norm


for step in range(STEPS):
    draw = torch.Generator().manual_seed(130 + step)
    batch = torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=draw)
    total = torch.zeros(())
    for micro in batch.chunk(args.accumulate):
        mine = micro.chunk(datas)[data]
        logits = model(mine[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), mine[:, 1:].flatten()) / args.accumulate
        loss.backward()
        total += loss.detach()
    for name, p in model.named_parameters():
        wrong = args.mutant == "group" and "norm2" in name
        dist.all_reduce(p.grad, group=tensor_group if wrong else data_group)
        p.grad /= datas
    norm = clip()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total, group=data_group)
    if rank == 0:
        print(f"step {step} loss {total.item() / datas:.6f} norm {norm.item():.6f}", flush=True)
dist.destroy_process_group()
