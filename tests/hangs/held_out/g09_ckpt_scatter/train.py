from datetime import timedelta
import random

import torch
import torch.distributed as dist
from torch import nn

from ckpt import Store


def plan_work(world, epoch):
    """Rank 0 splits the files of an epoch, the shares differ in size."""
    files = [f"f{i:02d}" for i in range(10)]
    random.Random(epoch).shuffle(files)
    cut = sorted(random.Random(epoch + 1).sample(range(1, 10), world - 1))
    return [files[a:b] for a, b in zip([0] + cut, cut + [10])]


def share_plan(rank, world, epoch):
    box = [None]
    dist.scatter_object_list(box, plan_work(world, epoch) if rank == 0 else None, src=0)
    return box[0]


def local_gradient(model, files):
    model.zero_grad()
    for name in files:
        g = torch.Generator().manual_seed(int(name[1:]))
        x = torch.randn(12, 5, generator=g)
        (model(x) - x[:, :1]).pow(2).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def apply(model, flat, lr=1e-3):
    pos = 0
    with torch.no_grad():
        for p in model.parameters():
            p -= lr * flat[pos:pos + p.numel()].view_as(p)
            pos += p.numel()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model, store = nn.Linear(5, 1), Store()
    for epoch in range(6):
        files = share_plan(rank, world, epoch)
        flat = local_gradient(model, files)
        dist.all_reduce(flat)
        apply(model, flat)
        if epoch % 2 == 1:
            store.save(model.state_dict())
    model.load_state_dict(store.restore())
    store.drop()
    if rank == 0:
        print("done", model.weight.norm().item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
