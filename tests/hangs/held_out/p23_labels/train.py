import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

from data import CLASSES, Annotations, collate


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(20, 24)
        self.out = nn.Linear(24, len(CLASSES))

    def forward(self, x):
        return self.out(F.relu(self.hidden(x)))


class Confusion:
    def __init__(self):
        self.table = torch.zeros(len(CLASSES), len(CLASSES))

    def add(self, logits, y):
        for guess, truth in zip(logits.argmax(1), y):
            self.table[truth, guess] += 1

    def total(self):
        table = self.table.clone()
        dist.all_reduce(table)
        return table


def average(parameters):
    for p in parameters:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def epoch(model, optimizer, loader):
    confusion = Confusion()
    for x, y in loader:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        average(model.parameters())
        optimizer.step()
        confusion.add(logits.detach(), y)
    return confusion.total()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    loader = DataLoader(Annotations(dist.get_rank()), batch_size=8, collate_fn=collate)
    for number in range(3):
        table = epoch(model, optimizer, loader)
        if dist.get_rank() == 0:
            print(number, float(table.diagonal().sum() / table.sum()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
