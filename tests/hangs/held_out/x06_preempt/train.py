import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoint import Checkpointer
from cluster import Maintenance, Preemption

SAVE_EVERY = 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3)
        self.fc = nn.Linear(4 * 10, 3)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).flatten(1))


def batch(step, rank):
    g = torch.Generator().manual_seed(step * 31 + rank)
    return torch.randn(8, 1, 12, generator=g), torch.randint(0, 3, (8,), generator=g)


def train(model, opt, ckpt, preempt, node, steps):
    rank = dist.get_rank()
    for step in range(1, steps + 1):
        node.poll(step)
        if preempt.requested:
            ckpt.save(step)
            return step
        x, y = batch(step, rank)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % SAVE_EVERY == 0:
            ckpt.save(step)
    return steps


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Net())
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    preempt = Preemption()
    node = Maintenance(dist.get_rank(), {1: 17})
    last = train(model, opt, Checkpointer(model, opt), preempt, node, 60)
    print("left after step", last)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
