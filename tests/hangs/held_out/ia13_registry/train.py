import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from metrics import evaluate

CLASSES = 12


class Draw:
    """Few classes in each batch, as users draw them."""

    SETS = {
        0: [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)],
        1: [(6, 7), (7, 8), (6, 9), (7, 8), (9, 10), (10, 11)],
        2: [(0, 11), (1, 11), (2, 11), (3, 11), (4, 11), (5, 11)],
    }

    def __init__(self, rank):
        self.sets = self.SETS[rank]
        self.gen = torch.Generator().manual_seed(rank)

    def __iter__(self):
        for pair in self.sets:
            labels = torch.tensor(pair * 5)
            x = torch.randn(10, 8, generator=self.gen) + labels.unsqueeze(1) * 0.1
            yield x, labels


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, CLASSES)))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-2)

    def step(self, x, labels):
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, labels)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return logits.detach()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainer = Trainer()
    for number, (x, labels) in enumerate(Draw(rank)):
        logits = trainer.step(x, labels)
        values = evaluate(logits, labels)
        if rank == 0:
            print(number, values, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
