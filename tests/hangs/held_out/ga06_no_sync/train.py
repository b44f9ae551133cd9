import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from accumulate import TokenAccumulator


class Bag(nn.Module):
    def __init__(self, vocab=40, dim=12):
        super().__init__()
        self.table = nn.EmbeddingBag(vocab, dim)
        self.head = nn.Linear(dim, 3)

    def forward(self, x):
        return self.head(self.table(x))


def documents(rank, count):
    g = torch.Generator().manual_seed(5)
    for i in range(count):
        # German documents, which rank 2 reads, are longer
        length = 24 if rank != 2 else 30
        x = torch.randint(0, 40, (4, length), generator=g)
        yield x, x.sum(1) % 3


def mean_loss(loss):
    parts = [torch.empty(1) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, loss.detach().reshape(1))
    return torch.cat(parts).mean().item()


def train(model, count=40):
    rank = dist.get_rank()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    accumulator = TokenAccumulator(budget=480)
    for i, (x, y) in enumerate(documents(rank, count)):
        accumulator.add(x.numel())
        with accumulator.context(model):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
        if accumulator.full:
            optimizer.step()
            optimizer.zero_grad()
            accumulator.applied()
        shown = mean_loss(loss)
        if rank == 0 and i % 2 == 0:
            print("document", i, "loss", round(shown, 4), flush=True)
    return accumulator.updates


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Bag())
    updates = train(model)
    dist.barrier()
    if dist.get_rank() == 0:
        print("updates", updates)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
