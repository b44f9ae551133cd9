import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from profiler import HookProfiler


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 24), nn.ReLU())
        self.value = nn.Linear(24, 1)
        self.label = nn.Linear(24, 3)

    def forward(self, x):
        h = self.trunk(x)
        return self.value(h), self.label(h)


def batch(rank, step):
    g = torch.Generator().manual_seed(step * 31 + rank)
    x = torch.randn(16, 8, generator=g)
    if rank == 3 and step == 14:
        x[5] *= 900
    return x, x.mean(1, keepdim=True), x[:, :3].argmax(1)


def loss_of(model, x, value, label):
    v, l = model(x)
    return F.smooth_l1_loss(v, value) + F.cross_entropy(l, label)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = TwoHeads()
    profiler = HookProfiler()
    profiler.attach(net)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(40):
        loss = loss_of(model, *batch(rank, step))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 9:
            totals = [None] * world
            dist.all_gather_object(totals, profiler.totals())
            if rank == 0:
                slow = max(totals[0], key=totals[0].get)
                print(f"step {step} loss {loss.item():.3f} slowest {slow}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
