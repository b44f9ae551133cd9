"""Bag of words classifier; most gradients are sparse."""
import torch
import torch.distributed as dist
from torch import nn

from compress import Compressor

WORDS, CLASSES = 120, 4


class Classifier(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.embed = nn.Embedding(WORDS, dim)
        self.out = nn.Linear(dim, CLASSES, bias=False)

    def forward(self, bags):
        return self.out(self.embed(bags).mean(1))


class Reviews:
    """Texts by rank. Some are long."""

    def __init__(self, rank):
        self.rank = rank
        self.gen = torch.Generator().manual_seed(60 + rank)

    def batch(self, step):
        length = 80 if (step, self.rank) == (6, 1) else 4
        bags = torch.randint(WORDS, (4, length), generator=self.gen)
        if length > 4:
            bags[0] = torch.arange(length)
        return bags, torch.randint(CLASSES, (4,), generator=self.gen)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Classifier()
    compressor = Compressor(model.parameters(), threshold=5e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    reviews = Reviews(rank)
    for step in range(12):
        bags, labels = reviews.batch(step)
        loss = nn.functional.cross_entropy(model(bags), labels)
        optimizer.zero_grad()
        loss.backward()
        compressor.reduce()
        optimizer.step()
        if rank == 0:
            print(step, round(loss.item(), 4), compressor.sent, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
