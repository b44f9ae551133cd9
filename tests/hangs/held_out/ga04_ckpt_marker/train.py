import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoint import Store


class Config:
    steps = 20
    save_every = 5
    batch = 16

    def __init__(self):
        self.output = os.environ.get("OUTPUT_DIR") or tempfile.mkdtemp(prefix="run-")


def build_model():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 10))


def batch_of(step, rank, size):
    g = torch.Generator().manual_seed(step * 100 + rank)
    x = torch.randn(size, 10, generator=g)
    return x, x.flip(1)


def save(store, step, model, optimizer):
    if dist.get_rank() == 0:
        store.save(step, model.module, optimizer)
    else:
        store.wait_for(step)
    dist.barrier()


def train(config):
    rank = dist.get_rank()
    model = DDP(build_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    store = Store(os.path.join(config.output, "checkpoints"))
    for step in range(1, config.steps + 1):
        x, y = batch_of(step, rank, config.batch)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % config.save_every == 0:
            save(store, step, model, optimizer)
            if rank == 0:
                print("saved", step, round(loss.item(), 4), flush=True)
    store.load(config.steps, model.module)


def main():
    dist.init_process_group("gloo")
    train(Config())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
