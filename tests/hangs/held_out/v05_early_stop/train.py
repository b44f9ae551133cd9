import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from callbacks import EarlyStopping, History

DIM = 6


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(DIM, 24), nn.Tanh())
        self.head = nn.Linear(24, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(-1)


def make_data(rank):
    gen = torch.Generator().manual_seed(50 + rank)
    x = torch.randn(80, DIM, generator=gen)
    y = x[:, 0] * 2 - x[:, 1]
    xv = torch.randn(40, DIM, generator=gen)
    yv = xv[:, 0] * 2 - xv[:, 1]
    if rank >= 2:
        # the newer sites calibrate with the other sign
        yv = -yv
    return (x, y), (xv, yv)


def fit_epoch(model, opt, x, y, batch=20):
    total = 0.0
    for i in range(0, len(x), batch):
        loss = nn.functional.mse_loss(model(x[i : i + batch]), y[i : i + batch])
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total


@torch.no_grad()
def validate(model, x, y):
    return nn.functional.mse_loss(model.module(x), y).item()


def train(model, rank, max_epochs=40):
    train_set, valid_set = make_data(rank)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    stopper = EarlyStopping()
    history = History()
    for epoch in range(max_epochs):
        loss = fit_epoch(model, opt, *train_set)
        val = validate(model, *valid_set)
        history.add(epoch=epoch, loss=loss, val=val)
        if stopper.update(val):
            print(f"rank {rank}: stop after epoch {epoch}", flush=True)
            break
    return history


def summarize(history, rank):
    rows = [None] * dist.get_world_size() if rank == 0 else None
    dist.gather_object(history.last("val"), rows, dst=0)
    if rank == 0:
        print("validation", rows)
    dist.barrier()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = dist.get_rank()
    model = DDP(Net())
    history = train(model, rank)
    summarize(history, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
