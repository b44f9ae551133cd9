import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoint import Checkpointer

SAVE_EVERY = 5


def build():
    torch.manual_seed(0)
    return DDP(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2)))


def batches(rank, steps):
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        x = torch.randn(16, 10, generator=generator)
        yield x, (x.sum(1) > 0).long()


def is_main():
    return dist.get_rank() == 0


def mean_over_ranks(value):
    total = torch.tensor(value)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def train(model, optimizer, checkpointer, steps=20):
    for step, (x, y) in enumerate(batches(dist.get_rank(), steps), start=1):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % SAVE_EVERY == 0:
            if is_main():
                checkpointer.save(step, model, optimizer)
            loss = mean_over_ranks(loss.item())
            if is_main():
                print(f"step {step}: loss {loss:.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    checkpointer = Checkpointer(dist.get_rank())
    try:
        train(model, optimizer, checkpointer)
    finally:
        checkpointer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
