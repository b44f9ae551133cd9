import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from utils import BatchSchedule, Patience, mean, smallest


def share(rank):
    """Sites have different numbers of records."""
    g = torch.Generator().manual_seed(rank)
    x = torch.randn(96 + 40 * rank, 6, generator=g)
    return TensorDataset(x, x.sum(1, keepdim=True) + 0.3 * torch.randn(len(x), 1, generator=g))


def train_epoch(net, optimizer, loader):
    total, steps = 0.0, smallest(len(loader))
    for _, (x, y) in zip(range(steps), loader):
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / steps


@torch.no_grad()
def evaluate(net):
    g = torch.Generator().manual_seed(50)
    x = torch.randn(64, 6, generator=g)
    return nn.functional.mse_loss(net(x), x.sum(1, keepdim=True)).item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.3)
    schedule, patience = BatchSchedule(8, 32), Patience(3)
    data = share(rank)
    for epoch in range(12):
        batch = schedule.update(optimizer.param_groups[0]["lr"])
        train_loss = train_epoch(net, optimizer, DataLoader(data, batch, shuffle=True))
        plateau.step(mean(train_loss))
        stop = torch.zeros(1)
        if rank == 0:
            value = evaluate(net.module)
            stop[0] = float(patience.exhausted(value))
            print("epoch", epoch, "batch", batch, "error", round(value, 4), flush=True)
        dist.broadcast(stop, src=0)
        if stop.item():
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
