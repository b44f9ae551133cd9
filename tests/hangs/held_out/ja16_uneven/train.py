import os

import torch
import torch.distributed as dist
from torch import nn

from data import Hospital
from evaluation import evaluate


def average(model, has_data):
    """Averages the gradients over the ranks that still have data; returns whether any has."""
    parameters = list(model.parameters())
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([g.flatten() for g in grads] + [torch.tensor([float(has_data)])])
    dist.all_reduce(flat)
    active = flat[-1].item()
    start = 0
    for p in parameters:
        p.grad = (flat[start:start + p.numel()] / max(active, 1.0)).view_as(p)
        start += p.numel()
    return active > 0


def train_epoch(model, optimizer, data):
    seen = 0
    batches = iter(data)
    while True:
        batch = next(batches, None)
        optimizer.zero_grad()
        if batch is not None:
            x, y = batch
            nn.functional.cross_entropy(model(x), y).backward()
            seen += len(y)
        if not average(model, batch is not None):
            return seen
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Hospital(rank)
    best = 0.0
    for epoch in range(2):
        seen = torch.tensor(train_epoch(model, optimizer, data))
        dist.all_reduce(seen)
        verdict = [None]
        if rank == 0:
            mean, deviation = evaluate(model, rounds=20, pause=0.05 if epoch else 0.03)
            print(f"epoch {epoch}: {seen.item()} records, accuracy {mean:.3f} +- {deviation:.3f}", flush=True)
            if mean > best:
                best = mean
                torch.save(model.state_dict(), "best.pt")
            verdict = [mean > 0.999]
        dist.broadcast_object_list(verdict, src=0)
        if verdict[0]:
            break
    dist.barrier()
    if os.path.exists("best.pt"):
        model.load_state_dict(torch.load("best.pt", weights_only=True))
    total = sum(p.double().sum() for p in model.parameters())
    dist.all_reduce(total)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
