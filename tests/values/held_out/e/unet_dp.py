"""A small U-Net for segmentation, data parallel by hand: flat buckets, accumulation, synchronized batch norm."""

import argparse
import contextlib
import copy
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--layout", default="one", choices=["one", "dp"])
parser.add_argument("--mutant", default="")
parser.add_argument("--dtype", default="float32", help="or autocast")
parser.add_argument("--ema", action="store_true")
parser.add_argument("--reload", action="store_true", help="save and reload the state after each step")
args = parser.parse_args()
DTYPE = torch.float64 if args.dtype == "float64" else torch.float32
MICRO, ACCUMULATE, SIZE, CLASSES = 8, 2, 8, 3

dist.init_process_group("gloo")
RANK, DP = dist.get_rank(), dist.get_world_size()


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


class SyncBatchNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        if self.training:
            x = x.to(self.weight.dtype)
            own = torch.stack([x.mean((0, 2, 3)), x.square().mean((0, 2, 3))]) / DP
            mean, square = SumOverRanks.apply(own) if DP > 1 else own
            var = square - mean.square()
            with torch.no_grad():
                seen = own[0] * DP if args.mutant == "running_mean" else mean  # @running_mean
                self.running_mean.lerp_(seen, 0.2)  # @running_mean
                self.running_var.lerp_(var, 0.2)
        else:
            mean, var = self.running_mean, self.running_var
        scale = self.weight * (var + 1e-5).rsqrt()
        return x * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]


class ConvBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inputs, outputs, 3, padding=1), SyncBatchNorm(outputs)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = ConvBlock(2, 8), ConvBlock(8, 16), ConvBlock(16, 24)
        self.up2, self.up1 = ConvBlock(24 + 16, 16), ConvBlock(16 + 8, 8)
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        x = self.middle(F.max_pool2d(b, 2))
        x = self.up2(torch.cat([F.interpolate(x, scale_factor=2), b], dim=1))
        x = self.up1(torch.cat([F.interpolate(x, scale_factor=2), a], dim=1))
        return self.head(x)


class Buckets:
    """Flat buffers of at most 4096 elements, filled from the last parameter on."""

    def __init__(self, parameters):
        self.buckets, size = [[]], 0
        for p in reversed(list(parameters)):
            if size + p.numel() > 4096 and self.buckets[-1]:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(p)
            size += p.numel()

    def reduce(self):
        pending = []
        for bucket in self.buckets:
            flat = torch.cat([p.grad.flatten() for p in bucket])
            pending.append((bucket, flat, dist.all_reduce(flat, async_op=True)))  # @unpack
        for bucket, flat, work in pending:
            work.wait()
            flat.div_(DP)
            offset = 0
            for p in list(reversed(bucket)) if args.mutant == "unpack" and len(bucket) > 1 else bucket:
                p.grad.copy_(flat[offset : offset + p.numel()].view_as(p))  # @unpack
                offset += p.numel()


def batch(step, micro):
    g = torch.Generator().manual_seed(1000 * step + micro)
    images = torch.randn(MICRO, 2, SIZE, SIZE, generator=g)
    target = (F.avg_pool2d(images, 3, 1, 1).sum(1) * 4).long().clamp(-1, 1) + 1
    own = slice(RANK * MICRO // DP, (RANK + 1) * MICRO // DP)
    return images[own].to(DTYPE), target[own]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(4)
    model = UNet().to(DTYPE)
    initial = {n: p.detach().double().numpy().copy() for n, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.8, nesterov=True)
    buckets = Buckets(model.parameters())
    shadow = copy.deepcopy(model).requires_grad_(False) if args.ema else None
    cast = torch.autocast("cpu", torch.bfloat16) if args.dtype == "autocast" else contextlib.nullcontext()
    for step in range(3):
        model.train()
        optimizer.zero_grad()
        for micro in range(ACCUMULATE):
            images, target = batch(step, micro)
            with cast:
                logits = model(images)
            loss = F.cross_entropy(logits.to(DTYPE), target) / ACCUMULATE
            loss.backward()
            last = micro == ACCUMULATE - 1
            if args.mutant == "sync_first":
                last = micro == 0  # @sync_first
            if last:
                buckets.reduce()  # @sync_first @unpack
            if args.mutant == "sync_each" and not last:
                buckets.reduce()  # @sync_each
                for p in model.parameters():
                    p.grad.mul_(DP)  # @sync_each
        optimizer.step()
        if shadow is not None:
            for ours, theirs in zip(shadow.state_dict().values(), model.state_dict().values()):
                ours.lerp_(theirs, 0.3)
        if args.reload:
            state = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        evaluated = shadow if shadow is not None else model
        evaluated.eval()
        with torch.no_grad():
            images, target = batch(step, 77)
            shown = torch.stack([loss, F.cross_entropy(evaluated(images), target)]).double()
        dist.all_reduce(shown)
        if RANK == 0:
            print(f"step {step} loss {shown[0].item() / DP:.7f} evaluation {shown[1].item() / DP:.7f}")
    rows = []
    for name, p in model.named_parameters():
        now = p.detach().double().numpy()
        rows.append([(now**2).sum() / DP, ((now - initial[name]) ** 2).sum() / DP])
    rows = torch.tensor(rows, dtype=torch.float64)
    dist.all_reduce(rows)
    if RANK == 0:
        print("norms", " ".join(f"{v:.6f}" for v in rows.sqrt().flatten().tolist()))


main()
dist.barrier()
dist.destroy_process_group()
time.sleep(0.3)
