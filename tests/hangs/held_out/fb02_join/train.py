import torch
import torch.distributed as dist
import torch.nn as nn

from uneven import Participation, reduce, shadow, uneven_batches

EPOCHS = 3


def train_epoch(model, opt, part, rank, epoch):
    batches = uneven_batches(rank, epoch)
    steps = 0
    while True:
        item = next(batches, None)
        active = part.active(item is not None)
        if active == 0:
            break
        if item is None:
            shadow(model)
            continue
        x, y = item
        opt.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        reduce(model, active)
        opt.step()
        steps += 1
    return steps


def resync(model, steps, rank, world):
    """The rank that made the most steps has the newest weights."""
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(counts, torch.tensor([steps]))
    newest = int(torch.cat(counts).argmax())
    for p in model.parameters():
        dist.broadcast(p.data, src=newest)
    return newest


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    part = Participation(world)
    for epoch in range(EPOCHS):
        steps = train_epoch(model, opt, part, rank, epoch)
        newest = resync(model, steps, rank, world)
        if rank == 0:
            print(f"epoch {epoch} newest {newest}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
