"""Vision transformer on a 2-D mesh by hand: tensor parallel (inner) times data parallel (outer), clipped by the global norm."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "2d"])
parser.add_argument("--tp", type=int, default=2)
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--clip", type=float, default=0.0)
args = parser.parse_args()

PATCH, CHANNELS, SIDE, DIM, HEADS, INNER, LAYERS, CLASSES, BATCH = 4, 3, 12, 32, 4, 96, 2, 12, 8
TOKENS = (SIDE // PATCH) ** 2
dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
DTYPE = getattr(torch, args.dtype)
TP = args.tp if args.layout == "2d" else 1
DP = WORLD // TP
TP_RANK, DP_RANK = RANK % TP, RANK // TP
tp_groups = [dist.new_group(list(range(i * TP, i * TP + TP))) for i in range(DP)]
dp_groups = [dist.new_group(list(range(i, WORLD, TP))) for i in range(TP)]
tp_group, dp_group = tp_groups[DP_RANK], dp_groups[TP_RANK]


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=tp_group)
        return gradient


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)  # @fc2_group
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class ShardedLinear(nn.Linear):
    """A linear layer of which each rank has some outputs ("out") or some inputs ("in")."""

    def __init__(self, inputs, outputs, side):
        super().__init__(inputs, outputs)
        self.side, self.group = side, tp_group

    def forward(self, x):
        if TP == 1:
            return super().forward(x)
        if self.side == "out":
            return super().forward(Enter.apply(x))
        return Leave.apply(F.linear(x, self.weight), self.group) + self.bias  # @fc2_group


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (ShardedLinear(DIM, DIM, "out") for _ in range(3))
        self.scale = nn.Parameter(torch.full((1, HEADS, 1, 1), (DIM // HEADS) ** -0.5))
        self.bias = nn.Parameter(torch.zeros(1, HEADS, TOKENS, TOKENS))
        self.out = ShardedLinear(DIM, DIM, "in")

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, DIM // HEADS)).transpose(1, 2) for f in (self.query, self.key, self.value))
        weights = (q @ k.transpose(-1, -2) * self.scale + self.bias).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(DIM), Attention(), nn.LayerNorm(DIM)
        self.fc1, self.fc2 = ShardedLinear(DIM, INNER, "out"), ShardedLinear(INNER, DIM, "in")

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(CHANNELS, DIM, PATCH, stride=PATCH)
        self.position = nn.Parameter(torch.randn(1, TOKENS, DIM) * 0.1)
        self.encoders = nn.Sequential(*(Encoder() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, CLASSES)

    def forward(self, images):
        x = self.patch(images).flatten(2).transpose(1, 2) + self.position  # @sampler
        return self.head(self.norm(self.encoders(x)).mean(1))


def dimension(name):
    """The dimension in which a parameter is divided over tensor parallel ranks, or None."""
    if name.endswith(("attention.scale", "attention.bias")):
        return 1
    if any(part in name for part in ("query", "key", "value", "fc1")):
        return 0
    return 1 if name.endswith(("out.weight", "fc2.weight")) else None


torch.manual_seed(41)
model = ViT().to(DTYPE)
for name, parameter in model.named_parameters():
    if TP > 1 and dimension(name) is not None:
        parameter.data = parameter.data.chunk(TP, dimension(name))[TP_RANK].clone()
if args.mutant == "fc2_group":
    model.encoders[1].fc2.group = dp_group  # @fc2_group
optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9, weight_decay=1e-4)


def total_of(function, once=True):
    """Sum of a function over all parameters, each element counted once."""
    total = torch.zeros((), dtype=torch.float64)
    for name, parameter in model.named_parameters():
        copies = TP if once and dimension(name) is None else 1  # @norm_of_copies
        total += function(parameter).detach().double().sum() / copies  # @norm_of_copies
    if TP > 1:
        dist.all_reduce(total, group=tp_group)
    return total


for step in range(3):
    generator = torch.Generator().manual_seed(30 + step)
    images = torch.randn(BATCH, CHANNELS, SIDE, SIDE, generator=generator).to(DTYPE)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    part = (RANK if args.mutant == "sampler" else DP_RANK) % DP  # @sampler
    images, labels = images.chunk(DP)[part], labels.chunk(DP)[part]  # @sampler
    logits = model(images)  # @sampler
    loss = F.cross_entropy(logits.to(torch.promote_types(DTYPE, torch.float32)), labels)
    loss.backward()
    for name, parameter in model.named_parameters():
        if args.mutant == "bias_group" and parameter.dim() == 1:
            dist.all_reduce(parameter.grad, group=tp_group)  # @bias_group
        elif DP > 1:
            dist.all_reduce(parameter.grad, group=dp_group)  # @bias_group
        parameter.grad /= DP  # @bias_group
    if args.clip:
        norm = total_of(lambda p: p.grad.double().square(), args.mutant != "norm_of_copies").sqrt()  # @norm_of_copies
        for parameter in model.parameters():
            parameter.grad *= min(1.0, args.clip / (norm.item() + 1e-6))  # @norm_of_copies
    optimizer.step()  # @norm_of_copies
    mean = loss.detach().double()
    if DP > 1:
        dist.all_reduce(mean, group=dp_group)
    size, slope = total_of(torch.abs), total_of(lambda p: p.grad.abs())
    optimizer.zero_grad()
    if RANK == 0:
        print(f"step {step} loss {mean.item() / DP:.7f} sum {size.item():.7f} grad {slope.item():.7f}", flush=True)

dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
