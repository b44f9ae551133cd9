import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from data import make_loader


class Classifier(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.body(x))


def train_epoch(model, loader, optimizer):
    total, batches = 0.0, 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        batches += 1
    return total, batches


def summarize(epoch, total, batches):
    stats = torch.tensor([total, float(batches)])
    dist.all_reduce(stats)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {stats[0] / stats[1]:.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank = dist.get_rank()
    loader = make_loader(rank)
    model = DDP(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        total, batches = train_epoch(model, loader, optimizer)
        summarize(epoch, total, batches)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
