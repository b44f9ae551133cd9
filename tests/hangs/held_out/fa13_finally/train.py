import torch
import torch.distributed as dist
import torch.nn as nn

from data import FEATURES, Reader
from metrics import MetricLog

EPOCHS = 3


def average_grads(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def run_epoch(epoch, model, opt, reader, log, world):
    try:
        for rows in reader.epoch(epoch):
            loss = (model(rows) - rows).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            average_grads(model, world)
            opt.step()
            log.add(loss.item())
    finally:
        log.close()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 3), nn.Tanh(), nn.Linear(3, FEATURES))
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    log = MetricLog(rank, world)
    reader = Reader(rank)
    for epoch in range(EPOCHS):
        run_epoch(epoch, model, opt, reader, log, world)
        if rank == 0:
            print(f"epoch {epoch} loss {log.epochs[-1]:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
