import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from checkpoint import Checkpoints

STEPS_PER_EPOCH = 5


def build():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, optimizer


def previous_job(folder, rank):
    """The state in which the job before this one was killed by its time limit."""
    model, optimizer = build()
    checkpoints = Checkpoints(folder, rank)
    for epoch in range(3):
        model(torch.randn(4, 12)).mean().backward()
        optimizer.step()
        checkpoints.save(epoch, model, optimizer)
    if rank == 2:
        newest = checkpoints.path(2)
        newest.write_bytes(newest.read_bytes()[:700])


def train_epoch(model, optimizer, generator):
    total = 0.0
    for _ in range(STEPS_PER_EPOCH):
        x = torch.randn(8, 12, generator=generator)
        loss = (model(x) - x.sum(dim=1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / STEPS_PER_EPOCH


def fit(folder, rank, epochs=6):
    model, optimizer = build()
    checkpoints = Checkpoints(folder, rank)
    start = checkpoints.resume(model, optimizer)
    ddp = DDP(model)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for epoch in range(start, epochs):
        losses.append(train_epoch(ddp, optimizer, generator))
        checkpoints.save(epoch, model, optimizer)
    return losses


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with tempfile.TemporaryDirectory() as folder:
        previous_job(folder, rank)
        losses = fit(folder, rank)
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, losses)
    if rank == 0:
        print("final losses", [part[-1] for part in everyone], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
