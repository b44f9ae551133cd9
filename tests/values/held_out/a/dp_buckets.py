"""A small ResNet, data parallel by hand with buckets of gradients; batches may be uneven."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class ResBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.gn1 = nn.GroupNorm(4, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.gn2 = nn.GroupNorm(4, channels)

    def forward(self, x):
        y = F.relu(self.gn1(self.conv1(x)))
        return F.relu(x + self.gn2(self.conv2(y)))


class ResNet(nn.Module):
    def __init__(self, channels=16, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.stage1, self.stage2 = ResBlock(channels), ResBlock(channels)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = F.avg_pool2d(self.stage1(F.relu(self.stem(x))), 2)
        return self.fc(self.stage2(x).mean((2, 3)))


class Buckets:
    """Flat buckets in the order of the backward pass, summed over ranks."""

    def __init__(self, parameters, size, mutant):
        self.buckets, self.mutant = [[]], mutant
        for p in reversed(list(parameters)):
            if sum(q.numel() for q in self.buckets[-1]) + p.numel() > size and self.buckets[-1]:
                self.buckets.append([])
            self.buckets[-1].append(p)

    def reduce(self):
        full = self.buckets
        if self.mutant == "last_bucket":
            full = self.buckets[:-1]
        for number, bucket in enumerate(full):
            flat = torch.cat([p.grad.flatten() for p in bucket])
            dist.all_reduce(flat)
            order = list(bucket)
            if self.mutant == "unflatten_order" and number == 1:
                order.reverse()
            for p, g in zip(order, flat.split([p.numel() for p in order])):
                p.grad.copy_(g.view_as(p))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="one", help="one, dp or uneven")
    parser.add_argument("--mutant", default="none")
    parser.add_argument("--evaluate", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    model = ResNet()
    images, labels = torch.randn(36, 3, 8, 8), torch.randint(10, (36,))
    buckets = Buckets(model.parameters(), 2500, args.mutant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    batch = 12
    bounds = [batch * r // world for r in range(world + 1)]
    if args.layout == "uneven":
        bounds = [0, *[batch // world - 1 + r * 2 for r in range(world - 1)], batch]
    for step in range(3):
        x = images[step * batch:(step + 1) * batch][bounds[rank]:bounds[rank + 1]]
        y = labels[step * batch:(step + 1) * batch][bounds[rank]:bounds[rank + 1]]
        logits = model(x)
        if args.mutant == "mean_of_means":
            loss = F.cross_entropy(logits, y) / world
        else:
            loss = F.cross_entropy(logits, y, reduction="sum") / batch
        optimizer.zero_grad()
        loss.backward()
        buckets.reduce()
        if args.mutant == "skip_update" and step >= 1 and rank == world - 1:
            for p in model.stage2.gn1.parameters():
                p.grad = None
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if args.evaluate:
            model.eval()
            with torch.no_grad():
                correct = (model(images).argmax(1) == labels).sum()
            model.train()
            print(f"step {step} correct {correct.item()}\n", end="")
    with torch.no_grad():
        print(f"FINAL {rank} {F.cross_entropy(model(images), labels).item():.6f} {total.item():.6f}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
