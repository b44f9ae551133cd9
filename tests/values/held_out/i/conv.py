"""A convolutional network with batch norm over all ranks by hand, in DistributedDataParallel."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--layout", choices=["one", "dp"], default="one")
parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
parser.add_argument("--mutant", default="")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--flip", action="store_true")
parser.add_argument("--evaluate", action="store_true")
parser.add_argument("--batch", type=int, default=8)
args = parser.parse_args()
CLASSES, SIDE = 6, 8

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
n = world if args.layout == "dp" else 1


class Normalize(torch.autograd.Function):
    """Batch norm without weights, with statistics of all ranks."""

    @staticmethod
    def forward(ctx, x, eps):
        x32 = x.float()
        sums = torch.stack([x32.sum((0, 2, 3)), x32.pow(2).sum((0, 2, 3))])
        count = torch.tensor(float(x.numel() // x.shape[1]))
        if n > 1 and args.mutant != "local_stats":
            dist.all_reduce(sums)
            dist.all_reduce(count)
        mean = sums[0] / count
        var = sums[1] / count - mean.pow(2)
        scale = (var + eps).rsqrt()
        y = (x32 - mean.view(1, -1, 1, 1)) * scale.view(1, -1, 1, 1)
        ctx.save_for_backward(y, scale, count)
        ctx.mark_non_differentiable(mean, var, count)
        return y.to(x.dtype), mean, var, count

    @staticmethod
    def backward(ctx, g, *_):
        y, scale, count = ctx.saved_tensors
        g32 = g.float()
        sums = torch.stack([g32.sum((0, 2, 3)), (g32 * y).sum((0, 2, 3))])
        if n > 1 and args.mutant != "local_backward":
            dist.all_reduce(sums)
        mean, along = (sums / count).view(2, 1, -1, 1, 1)
        return ((g32 - mean - y * along) * scale.view(1, -1, 1, 1)).to(g.dtype), None


class BatchNorm(nn.Module):
    def __init__(self, width, momentum=0.2):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.momentum = momentum

    def forward(self, x):
        if self.training:
            y, mean, var, count = Normalize.apply(x, 1e-5)
            with torch.no_grad():
                if args.mutant == "local_count":
                    count = count / n
                unbiased = var * count / (count - 1)
                m = self.momentum
                self.running_mean.mul_(1 - m).add_(mean, alpha=m)
                self.running_var.mul_(1 - m).add_(unbiased, alpha=m)
        else:
            mean, var = self.running_mean.view(1, -1, 1, 1), self.running_var.view(1, -1, 1, 1)
            y = ((x - mean) * (var + 1e-5).rsqrt()).to(x.dtype)
        return y * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), BatchNorm(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), BatchNorm(16)
        self.conv3, self.bn3 = nn.Conv2d(16, 16, 3, padding=1, bias=False), BatchNorm(16)
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = x + F.relu(self.bn3(self.conv3(x)))
        return self.fc(x.mean((2, 3)))


torch.manual_seed(13)
dtype = getattr(torch, args.dtype)
net = Net()
for name, p in net.named_parameters():
    p.data = p.data.to(dtype)
model = DistributedDataParallel(net, broadcast_buffers=False) if args.layout == "dp" else net
head = [p for name, p in net.named_parameters() if name.startswith("fc")]
body = [p for name, p in net.named_parameters() if not name.startswith("fc")]
optimizer = torch.optim.SGD([{"params": body}, {"params": head, "lr": 0.05}], lr=0.1, momentum=0.9)
data = torch.Generator().manual_seed(14)
held_out = torch.randn(4, 3, SIDE, SIDE, generator=data).to(dtype)
for step in range(3):
    images = torch.randn(args.batch, 3, SIDE, SIDE, generator=data).to(dtype)
    labels = torch.randint(CLASSES, (args.batch,), generator=data)
    flips = torch.rand(args.batch, generator=data) < 0.5
    me = rank if n > 1 else 0
    images, labels = images.tensor_split(n)[me], labels.tensor_split(n)[me]
    flips = flips.tensor_split(n)[0 if args.mutant == "flip_first" else me]
    if args.flip:
        images = torch.where(flips[: len(images)].view(-1, 1, 1, 1), images.flip(3), images)
    each = F.cross_entropy(model(images).float(), labels, reduction="sum")
    loss = each * n / args.batch
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), args.clip or 1e9)
    if args.mutant == "freeze_rank" and rank == 1 and step >= 1:
        net.bn3.weight.grad.zero_()
    optimizer.step()
    shown = loss.detach().clone()
    if n > 1:
        dist.all_reduce(shown)
        shown /= n
    size = sum(p.detach().float().norm().item() for p in net.parameters())
    size += sum(b.norm().item() for b in net.buffers())
    print(f"rank {rank} step {step} loss {shown.item():.6f} norm {norm.item():.6f} size {size:.6f}", flush=True)
    if args.evaluate:
        net.eval()
        with torch.no_grad():
            score = net(held_out).float().pow(2).mean().item()
        net.train()
        print(f"rank {rank} step {step} held out {score:.6f}", flush=True)
dist.barrier()
dist.destroy_process_group()
