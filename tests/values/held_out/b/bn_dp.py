"""A small conv net, data parallel by hand, with synchronised batch norm written as an autograd function."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--layout", default="one", choices=["one", "dp"])
ap.add_argument("--mutant", default="none")
args = ap.parse_args()


class SyncNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, module):
        count = x.numel() / x.shape[1] * dist.get_world_size()
        sums = torch.cat([x.sum((0, 2, 3)), x.square().sum((0, 2, 3))])
        if args.mutant == "var_of_means" and module.name == "body.1.bn2":
            local_mean = x.mean((0, 2, 3))
            mean, var = local_mean.clone(), x.var((0, 2, 3), unbiased=False)
            dist.all_reduce(mean)  # @var_of_means
            dist.all_reduce(var)  # @var_of_means
            mean, var = mean / dist.get_world_size(), var / dist.get_world_size()  # @var_of_means
        else:
            dist.all_reduce(sums)
            mean, square = (sums / count).chunk(2)
            var = square - mean.square()
        module.update(x, mean, var, count)
        invstd = torch.rsqrt(var + module.eps)
        xhat = (x - mean[:, None, None]) * invstd[:, None, None]  # @var_of_means
        ctx.save_for_backward(xhat, weight, invstd)
        ctx.count, ctx.module = count, module
        return xhat * weight[:, None, None] + bias[:, None, None]  # @var_of_means

    @staticmethod
    def backward(ctx, dy):
        xhat, weight, invstd = ctx.saved_tensors
        dbias, dweight = dy.sum((0, 2, 3)), (dy * xhat).sum((0, 2, 3))
        both = torch.cat([dbias, dweight])
        if args.mutant == "backward_local" and ctx.module.name == "body.0.bn2":
            both *= dist.get_world_size()  # @backward_local
        else:
            dist.all_reduce(both)
        mean_dy, mean_dy_xhat = (both / ctx.count).chunk(2)
        dx = dy - mean_dy[:, None, None] - xhat * mean_dy_xhat[:, None, None]  # @backward_local
        return dx * (weight * invstd)[:, None, None], dweight, dbias, None  # @backward_local


class SyncBatchNorm(nn.BatchNorm2d):
    def __init__(self, channels, name):
        super().__init__(channels)
        self.name = name

    @torch.no_grad()
    def update(self, x, mean, var, count):
        if args.mutant == "running_local" and self.name == "body.1.bn1":
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)  # @running_local
        self.running_mean.lerp_(mean, self.momentum)  # @running_local
        self.running_var.lerp_(var * count / (count - 1), self.momentum)  # @running_local
        self.num_batches_tracked += 1

    def forward(self, x):
        if args.layout == "one" or not self.training:
            return super().forward(x)
        return SyncNorm.apply(x, self.weight, self.bias, self)


class Residual(nn.Module):
    def __init__(self, channels, name):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = SyncBatchNorm(channels, f"{name}.bn1")
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = SyncBatchNorm(channels, f"{name}.bn2")

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(h)))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.body = nn.ModuleList([Residual(16, f"body.{i}") for i in range(2)])
        self.classifier = nn.Linear(16, 5)

    def forward(self, x):
        x = self.stem(x)
        for block in self.body:
            x = block(x)
        return self.classifier(x.mean((2, 3)))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for step in range(3):
        gen = torch.Generator().manual_seed(step)
        x, y = torch.randn(12, 3, 8, 8, generator=gen), torch.randint(0, 5, (12,), generator=gen)
        x = x * (1 + y.view(-1, 1, 1, 1) / 2) + torch.linspace(-1, 1, 12).view(-1, 1, 1, 1)
        part = slice(rank * 12 // world, (rank + 1) * 12 // world)
        model.train()
        loss = F.cross_entropy(model(x[part]), y[part])
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(world)
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            check = F.cross_entropy(model(x), y)
        shown = torch.stack([loss.detach(), check])
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step} loss {shown[0].item() / world:.7f} evaluation {shown[1].item() / world:.7f}")
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # threads of gloo may need the interpreter once more


if __name__ == "__main__":
    main()
