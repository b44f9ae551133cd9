"""Encoder with sequence parallel norms and dropout between tensor parallel layers, as Megatron does, by hand."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "sp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--accumulate", type=int, default=1)
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
DIM, HEADS, LAYERS, SEQ, BATCH, FEATURES, DROP = 32, 4, 2, 16, 4, 10, 0.2

dist.init_process_group("gloo")
RANK, TP = dist.get_rank(), dist.get_world_size()
INIT, MASKS = torch.Generator().manual_seed(31), torch.Generator().manual_seed(32)
CHUNK = SEQ // TP


def normal(*shape, std=0.2):
    return (torch.randn(*shape, generator=INIT) * std).to(DTYPE)


def part(tensor, dim):
    return tensor.chunk(TP, dim)[RANK].clone().contiguous()


def all_gather(x):
    parts = [torch.empty_like(x) for _ in range(TP)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=0)


def reduce_scatter(x, rotate=0):
    """Gloo's reduce-scatter by an all-reduce of the whole tensor."""
    x = x.contiguous().clone()
    dist.all_reduce(x)  # @rotate
    return x.chunk(TP, 0)[(RANK + rotate) % TP].contiguous()  # @rotate


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, slice_only):
        ctx.slice_only = slice_only
        return all_gather(x)

    @staticmethod
    def backward(ctx, grad):
        if ctx.slice_only:
            return grad.chunk(TP, 0)[RANK].contiguous(), None  # @gather_slice
        return reduce_scatter(grad), None  # @gather_slice


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rotate):
        return reduce_scatter(x, rotate)

    @staticmethod
    def backward(ctx, grad):
        return all_gather(grad), None


class ColumnLinear(nn.Module):
    def __init__(self, inputs, outputs, slice_only=False):
        super().__init__()
        self.weight = nn.Parameter(part(normal(outputs, inputs), 0))
        self.slice_only = slice_only

    def forward(self, x):
        return F.linear(Gather.apply(x, self.slice_only) if TP > 1 else x, self.weight)  # @gather_slice


class RowLinear(nn.Module):
    def __init__(self, inputs, outputs, rotate=0):
        super().__init__()
        self.weight = nn.Parameter(part(normal(outputs, inputs), 1))
        self.bias = nn.Parameter(normal(outputs))
        self.rotate = rotate

    def forward(self, x):
        x = F.linear(x, self.weight)
        return (Scatter.apply(x, self.rotate) if TP > 1 else x) + self.bias  # @rotate


class Dropout(nn.Module):
    """The mask is drawn for the whole sequence, so that it is the same in every layout."""

    def __init__(self, same):
        super().__init__()
        self.same = same

    def forward(self, x):
        keep = torch.rand(SEQ, *x.shape[1:], generator=MASKS) >= DROP
        keep = keep[:CHUNK] if self.same else keep[RANK * CHUNK : (RANK + 1) * CHUNK]  # @mask_rank
        return x * keep.to(x.dtype) / (1 - DROP)  # @mask_rank


class Attention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.query, self.key, self.value = (ColumnLinear(DIM, DIM) for _ in range(3))
        self.out = RowLinear(DIM, DIM)

    def forward(self, x):
        q, k, v = (m(x).unflatten(-1, (-1, DIM // HEADS)).permute(1, 2, 0, 3) for m in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.permute(2, 0, 1, 3).flatten(2))


class MLP(nn.Module):
    def __init__(self, layer):
        super().__init__()
        last = layer == LAYERS - 1
        self.up = ColumnLinear(DIM, 4 * DIM, slice_only=args.mutant == "gather_slice" and last)
        self.down = RowLinear(4 * DIM, DIM, rotate=int(args.mutant == "rotate" and last))

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class Layer(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM, dtype=DTYPE), nn.LayerNorm(DIM, dtype=DTYPE)
        self.attention, self.mlp = Attention(layer), MLP(layer)
        self.drop1, self.drop2 = Dropout(False), Dropout(args.mutant == "mask_rank" and layer == 0)

    def forward(self, x):
        x = x + self.drop1(self.attention(self.norm1(x)))
        return x + self.drop2(self.mlp(self.norm2(x)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = nn.Linear(FEATURES, DIM, dtype=DTYPE)
        with torch.no_grad():
            self.inputs.weight.copy_(normal(DIM, FEATURES, std=0.4))
            self.inputs.bias.zero_()
        self.layers = nn.ModuleList(Layer(i) for i in range(LAYERS))
        self.norm = nn.LayerNorm(DIM, dtype=DTYPE)
        self.outputs = nn.Linear(DIM, FEATURES, dtype=DTYPE)
        with torch.no_grad():
            self.outputs.weight.copy_(normal(FEATURES, DIM))
            self.outputs.bias.zero_()

    def forward(self, x):
        x = self.inputs(x)
        for layer in self.layers:
            x = layer(x)
        return self.outputs(self.norm(x))


def is_sharded(name):
    return any(key in name for key in ("query", "key", "value", "out.weight", "up.", "down.weight"))


def main():
    torch.set_num_threads(1)
    model = Encoder()
    initial = {n: p.detach().double().numpy().copy() for n, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    data = torch.Generator().manual_seed(9)
    for step in range(3):
        optimizer.zero_grad()
        shown = torch.zeros((), dtype=torch.float64)
        for _ in range(args.accumulate):
            x = torch.randn(SEQ, BATCH, FEATURES, generator=data)
            target = torch.tanh(x.flip(0) + x.roll(1, 0))
            own = slice(RANK * CHUNK, (RANK + 1) * CHUNK)
            y = model(x[own].to(DTYPE))
            loss = (y - target[own].to(DTYPE)).square().mean() / TP / args.accumulate
            loss.backward()
            shown += loss.detach().double()
        for name, p in model.named_parameters():
            if is_sharded(name) or (args.mutant == "norm_grads" and ".norm" in name):
                continue
            dist.all_reduce(p.grad)  # @norm_grads
        optimizer.step()
        dist.all_reduce(shown)
        if RANK == 0:
            print(f"step {step} loss {shown.item():.7f}")
    rows = []
    for name, p in model.named_parameters():
        now = p.detach().double().numpy()
        share = 1.0 if is_sharded(name) else 1.0 / TP
        rows.append([share * (now**2).sum(), share * ((now - initial[name]) ** 2).sum()])
    rows = torch.tensor(rows, dtype=torch.float64)
    dist.all_reduce(rows)
    if RANK == 0:
        print("norms", " ".join(f"{v:.6f}" for v in rows.sqrt().flatten().tolist()))


main()
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
