import torch
import torch.distributed as dist
from torch import nn

from scaler import LossScaler


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 20), nn.ReLU())
        self.out = nn.Linear(20, 1)

    def forward(self, x):
        return self.out(self.body(x))


def readings(step, rank):
    g = torch.Generator().manual_seed(step * 17 + rank)
    x = torch.randn(8, 6, generator=g)
    y = x.mean(1, keepdim=True)
    if (step * 3 + rank) % 19 == 0:
        y[0] = 4000.0  # sensor saturates
    return x, y


def average_gradients(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def log(step, loss, scaler):
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, (round(loss, 4), scaler.scale, scaler.skipped))
    if dist.get_rank() == 0:
        print("step", step, rows, flush=True)


def train(model, steps=30, log_every=10):
    rank, world = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = LossScaler()
    for step in range(1, steps + 1):
        x, y = readings(step, rank)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        scaler.scaled(loss).backward()
        ok = scaler.unscale(list(model.parameters()))
        scaler.update(ok)
        if ok:
            average_gradients(model, world)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if step % log_every == 0:
            log(step, loss.item(), scaler)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = Regressor()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    train(model)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
