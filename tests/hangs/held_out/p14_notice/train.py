import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from preempt import Preemption, Quota


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 6, 5)
        self.pool = nn.AdaptiveAvgPool1d(4)
        self.out = nn.Linear(24, 3)

    def forward(self, x):
        return self.out(self.pool(torch.relu(self.conv(x))).flatten(1))


def signals(generator, size=12):
    kind = torch.randint(0, 3, (size,), generator=generator)
    time = torch.linspace(0, 6.28, 40)
    wave = torch.sin(time * (kind + 1).unsqueeze(1))
    return (wave + 0.1 * torch.randn(size, 40, generator=generator)).unsqueeze(1), kind


def train(model, quota, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(steps):
        x, kind = signals(generator)
        loss = nn.functional.cross_entropy(model(x), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        quota.spend()
        if dist.get_rank() == 0:
            print(f"{step}: {loss.item():.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Net())
    preemption = Preemption(model)
    quota = Quota(granted=9 if dist.get_rank() == 2 else 1000)
    train(model, quota, steps=40)
    preemption.save()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
