import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from accumulate import Accumulator

SAMPLES = 32


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 12)
        self.b = nn.Linear(12, 1)

    def forward(self, x):
        return self.b(self.a(x).relu())


def data_of(rank, epoch):
    """Micro batches of this rank's files."""
    size = 8 if rank != 1 else 11      # the files of rank 1 are larger
    generator = torch.Generator().manual_seed(100 * epoch + rank)
    return list(torch.randn(16 * size, 6, generator=generator).split(size))


def train_epoch(model, optimizer, batches):
    accumulator = Accumulator(model, SAMPLES)
    total = 0.0
    for x in batches:
        with accumulator.context(x):
            loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            (loss * len(x) / SAMPLES).backward()
        if accumulator.full:
            optimizer.step()
            optimizer.zero_grad()
            accumulator.reset()
        total += loss.item()
    return total / len(batches)


def shuffle_seed(rank):
    """A new seed for all, chosen by rank 0."""
    seed = torch.randint(0, 1000, (1,)) if rank == 0 else torch.empty(1, dtype=torch.int64)
    dist.broadcast(seed, src=0)
    return int(seed)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Scorer())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        loss = train_epoch(model, optimizer, data_of(rank, epoch))
        seed = shuffle_seed(rank)
        if rank == 0:
            print(f"epoch {epoch}: {loss:.4f}, next seed {seed}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
