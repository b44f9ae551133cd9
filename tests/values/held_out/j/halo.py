"""A convolutional network that labels pixels; the rows of images are divided over the ranks, which exchange halos."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

CHANNELS, GROUPS, CLASSES, DEPTH, BATCH, WIDTH, STEPS = 16, 4, 5, 3, 4, 10, 3

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "rows"])
parser.add_argument("--dtype", default="float32")
parser.add_argument("--height", type=int, default=12)
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adam"])
parser.add_argument("--mutant", default="")
args = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
dtype = getattr(torch, args.dtype)
above = rank - 1 if rank > 0 else None
below = rank + 1 if rank < world - 1 else None


def swap(to_above, to_below):
    """Sends a row to each neighbour; returns the rows that come from above and from below, zeros at the border."""
    from_above, from_below = torch.zeros_like(to_above), torch.zeros_like(to_below)
    requests = []
    if above is not None:
        requests += [dist.isend(to_above.contiguous(), above), dist.irecv(from_above, above)]
    if below is not None:
        requests += [dist.isend(to_below.contiguous(), below), dist.irecv(from_below, below)]
    for request in requests:
        request.wait()
    return from_above, from_below


class Halo(torch.autograd.Function):
    """Adds the neighbours' adjacent rows."""

    @staticmethod
    def forward(ctx, x):
        row = 1 if args.mutant == "row_off" else 0
        top, bottom = swap(x[:, :, row : row + 1].contiguous(), x[:, :, -1:].contiguous())
        return torch.cat([top, x, bottom], 2)

    @staticmethod
    def backward(ctx, gradient):
        own = gradient[:, :, 1:-1].clone()
        if args.mutant != "halo_backward":
            top, bottom = swap(gradient[:, :, :1].contiguous(), gradient[:, :, -1:].contiguous())
            own[:, :, :1] += top
            own[:, :, -1:] += bottom
        return own


class Sum(torch.autograd.Function):
    """The sum over ranks, of which each rank computes a part of the loss."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        if args.mutant != "sum_backward":
            dist.all_reduce(gradient)
        return gradient


class Norm(nn.Module):
    """Group normalization over all rows."""

    def __init__(self, own_rows=False):
        super().__init__()
        self.weight, self.bias = nn.Parameter(1 + 0.1 * torch.randn(CHANNELS)), nn.Parameter(torch.zeros(CHANNELS))
        self.own_rows = own_rows

    def forward(self, x):
        if args.layout == "one" or self.own_rows:
            return F.group_norm(x, GROUPS, self.weight, self.bias)
        groups = x.float().reshape(x.shape[0], GROUPS, -1)
        moments = torch.stack([groups.sum(-1), groups.square().sum(-1)])
        moments = Sum.apply(moments) / (CHANNELS // GROUPS * args.height * WIDTH)
        mean, square = moments[0].unsqueeze(-1), moments[1].unsqueeze(-1)
        y = (groups - mean) / (square - mean.square() + 1e-5).sqrt()
        return y.view_as(x).to(x.dtype) * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


class Block(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=(0, 1))
        self.norm = Norm(args.mutant == "own_rows" and index == 1)

    def forward(self, x):
        return x + F.relu(self.norm(self.conv(Halo.apply(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 1)
        self.blocks = nn.ModuleList(Block(index) for index in range(DEPTH))
        self.head = nn.Conv2d(CHANNELS, CLASSES, 1)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        return self.head(x)


torch.manual_seed(29)
model = Model().to(dtype)
if args.optimizer == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
else:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for step in range(STEPS):
    draw = torch.Generator().manual_seed(210 + step)
    images = torch.randn(BATCH, 3, args.height, WIDTH, generator=draw).to(dtype)
    labels = torch.randint(CLASSES, (BATCH, args.height, WIDTH), generator=draw)
    x, y = images.tensor_split(world, 2)[rank].contiguous(), labels.tensor_split(world, 1)[rank]
    logits = model(x)
    loss = F.cross_entropy(logits.float(), y, reduction="sum") / labels.numel()
    loss.backward()
    if args.layout == "rows":
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        for p, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
            p.grad.copy_(part.view_as(p))
    norm = torch.stack([p.grad.float().norm() for p in model.parameters()]).norm()
    if args.clip:
        for p in model.parameters():
            p.grad.mul_((args.clip / (norm + 1e-6)).clamp(max=1.0))
    optimizer.step()
    optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print(f"step {step} loss {total.item():.6f} norm {norm.item():.6f}", flush=True)
dist.destroy_process_group()
