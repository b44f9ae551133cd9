import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from stopping import Epochs, Watch


class Region:
    """Each rank trains and validates on its own region; region 2 is mostly noise."""

    def __init__(self, rank):
        generator = torch.Generator().manual_seed(20 + rank)
        self.x = torch.randn(160, 8, generator=generator)
        noise = torch.randn(160, 1, generator=generator)
        signal = self.x @ torch.linspace(0.5, 1.5, 8).unsqueeze(1)
        self.y = 3.0 * noise if rank == 2 else signal + 0.01 * noise

    def batches(self, size=16):
        for start in range(0, 128, size):
            yield self.x[start:start + size], self.y[start:start + size]

    def held_out(self):
        return self.x[128:], self.y[128:]


def fit(model, optimizer, region):
    for x, y in region.batches():
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def score(model, region):
    x, y = region.held_out()
    with torch.no_grad():
        return nn.functional.mse_loss(model.module(x), y).item()


def collect(history):
    rank = dist.get_rank()
    table = [None] * dist.get_world_size() if rank == 0 else None
    dist.gather_object(history, table, dst=0)
    if rank == 0:
        for number, row in enumerate(table):
            print(number, [round(value, 3) for value in row])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    region = Region(rank)
    epochs = Epochs(12, Watch(), optimizer)
    history = []
    for number in epochs:
        fit(model, optimizer, region)
        value = score(model, region)
        epochs.report(value)
        history.append(value)
    print(f"rank {rank}: {len(history)} epochs", flush=True)
    collect(history)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
