import shutil

import torch
import torch.distributed as dist
import torch.nn.functional as F

from checkpoint import LocalCheckpoint, node_scratch
from quant import build


def average(model):
    params = [p for p in model.parameters() if p.grad is not None]
    flat = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, g in zip(params, flat.split([p.numel() for p in params])):
        p.grad.copy_(g.view_as(p))


def batches(rank, n):
    g = torch.Generator().manual_seed(rank)
    for _ in range(n):
        x = torch.randn(16, 10, generator=g)
        yield x, (x[:, :3].argmax(1))


def fit(model, store, rank, steps):
    start = 0
    if store.exists():
        start = store.load(model)
        print(f"[{rank}] resumed from step {start}", flush=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(batches(rank, steps)):
        if step < start:
            continue
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        average(model)
        optimizer.step()
        if step % 10 == 9:
            store.save(model, step)
            dist.barrier()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    scratch = node_scratch(rank, build())
    torch.manual_seed(0)
    model = build()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    try:
        fit(model, LocalCheckpoint(scratch), rank, 30)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
