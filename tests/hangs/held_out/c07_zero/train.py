import torch
import torch.distributed as dist

from model import MultiTask
from sharded_optim import ShardedAdam

DIM, BATCH, CLASSES = 10, 8, 4


def records(rank, world, count=168):
    gen = torch.Generator().manual_seed(2)
    x = torch.randn(count, DIM, generator=gen)
    label = torch.where(torch.arange(count) % 7 < 5, torch.arange(count) % CLASSES, -1)
    label[117:144] = -1          # this source came without labels
    mine = slice(rank * count // world, (rank + 1) * count // world)
    return x[mine], x[mine].sum(1), label[mine]


def batches(data):
    yield from zip(*(t.split(BATCH) for t in data))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = MultiTask(DIM, CLASSES)
    opt = ShardedAdam(net.parameters(), lr=3e-3)
    data = records(rank, world)
    for epoch in range(3):
        total = torch.zeros(1)
        for x, y, label in batches(data):
            opt.zero_grad()
            loss = net(x, y, label)
            loss.backward()
            opt.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total.item() / world:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
