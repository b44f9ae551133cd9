"""An MLP-mixer on a grid of data x tensor parallel ranks, by hand; batches per data parallel rank may be uneven."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "grid"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--tp", type=int, default=2)
parser.add_argument("--clip", type=float, default=0.0)
args = parser.parse_args()
DTYPE = getattr(torch, args.dtype)
PATCHES, PATCH, DIM, LAYERS, BATCH, CLASSES = 9, 12, 24, 3, 12, 12

dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
TP = 1 if args.layout == "one" else args.tp
DP = WORLD // TP
DP_RANK, TP_RANK = divmod(RANK, TP)
tp_groups = [dist.new_group(list(range(d * TP, (d + 1) * TP))) for d in range(DP)]
dp_groups = [dist.new_group(list(range(t, WORLD, TP))) for t in range(TP)]
TP_GROUP, DP_GROUP = tp_groups[DP_RANK], dp_groups[TP_RANK]
COUNTS = [BATCH] if DP == 1 else [BATCH // DP + 3] + [BATCH // DP] * (DP - 2) + [BATCH // DP - 3]


class Enter(torch.autograd.Function):
    """Before column parallel layers: the gradient is summed over tensor parallel ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=TP_GROUP)
        return grad


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x, group=TP_GROUP)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class ParallelMLP(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(size, hidden), nn.Linear(hidden, size)

    def shard(self):
        for p, dim in ((self.up.weight, 0), (self.up.bias, 0), (self.down.weight, 1)):
            p.data = p.data.chunk(TP, dim)[TP_RANK].clone()

    def forward(self, x):
        x = F.gelu(self.up(Enter.apply(x) if TP > 1 else x))
        x = F.linear(x, self.down.weight)
        return (Leave.apply(x) if TP > 1 else x) + self.down.bias


class MixerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.tokens = nn.Sequential(nn.Linear(PATCHES, 16), nn.GELU(), nn.Linear(16, PATCHES))
        self.channels = ParallelMLP(DIM, 2 * DIM)

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(PATCH, DIM)
        self.blocks = nn.ModuleList(MixerBlock() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def is_sharded(name):
    return ".channels." in name and not name.endswith("down.bias")


def groups_of(model):
    """Matrices decay; biases and norms do not."""
    decay, rest = [], []
    for name, p in model.named_parameters():
        decays = p.ndim >= 2
        if args.mutant == "decay" and is_sharded(name):
            decays = True
        (decay if decays else rest).append(p)
    return [{"params": decay, "weight_decay": 0.5}, {"params": rest, "weight_decay": 0.0}]  # @decay


def reduce_gradients(model):
    for name, p in model.named_parameters():
        wrong = args.mutant == "wrong_group" and ".norm" in name
        dist.all_reduce(p.grad, group=TP_GROUP if wrong else DP_GROUP)  # @wrong_group
        p.grad.div_(WORLD if args.mutant == "divisor" and is_sharded(name) else DP)  # @divisor


def clip(model, limit):
    squares = torch.zeros((), dtype=torch.float32)
    for name, p in model.named_parameters():
        own = p.grad.float().square().sum()
        squares = squares + (own if is_sharded(name) else own / TP)
    dist.all_reduce(squares, group=TP_GROUP)
    scale = (limit / squares.sqrt()).clamp(max=1)
    for p in model.parameters():
        p.grad.mul_(scale.to(p.grad.dtype))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(17)
    model = Mixer()
    if TP > 1:
        for block in model.blocks:
            block.channels.shard()
    model.to(DTYPE)
    initial = {n: p.detach().double().numpy().copy() for n, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(groups_of(model), lr=2e-2, eps=1e-4)
    data = torch.Generator().manual_seed(2)
    first, count = sum(COUNTS[:DP_RANK]), COUNTS[DP_RANK]
    for step in range(3):
        x = torch.randn(BATCH, PATCHES, PATCH, generator=data)
        y = x[:, :, :4].mean(1).argmax(-1) + 4 * (x[..., 5].mean(1) > 0).long()
        logits = model(x[first : first + count].to(DTYPE))
        loss = F.cross_entropy(logits, y[first : first + count])
        weight = 1.0 if args.mutant == "uneven" else count * DP / BATCH
        loss = loss * weight  # @uneven
        optimizer.zero_grad()
        loss.backward()  # @uneven
        reduce_gradients(model)  # @wrong_group @divisor
        if args.clip:
            clip(model, args.clip)
        optimizer.step()  # @decay
        shown = loss.detach().double()
        dist.all_reduce(shown, group=DP_GROUP)
        if RANK == 0:
            print(f"step {step} loss {shown.item() / DP:.7f}")
    rows = []
    for name, p in model.named_parameters():
        now = p.detach().double().numpy()
        share = 1.0 / DP if is_sharded(name) else 1.0 / WORLD
        rows.append([share * (now**2).sum(), share * ((now - initial[name]) ** 2).sum()])
    rows = torch.tensor(rows, dtype=torch.float64)
    dist.all_reduce(rows)
    if RANK == 0:
        print("norms", " ".join(f"{v:.6f}" for v in rows.sqrt().flatten().tolist()))


main()
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
