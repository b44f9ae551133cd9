import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from callbacks import CallbackList, Patience, History


def make_split(rank):
    g = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(96, 12, generator=g)
    y = x[:, :1] * 2 + 0.1 * torch.randn(96, 1, generator=g)
    if rank == 1:
        y = torch.randn(96, 1, generator=g) * 4
    return (x[:64], y[:64]), (x[64:], y[64:])


class Trainer:
    def __init__(self, model, callbacks):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=0.02)
        self.callbacks = callbacks
        self.should_stop = False

    def train_epoch(self, data):
        x, y = data
        for xb, yb in zip(x.split(16), y.split(16)):
            loss = nn.functional.mse_loss(self.model(xb), yb)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    @torch.no_grad()
    def validate(self, data):
        x, y = data
        return nn.functional.mse_loss(self.model.module(x), y).item()

    def fit(self, train, val, epochs):
        for epoch in range(epochs):
            self.train_epoch(train)
            self.callbacks.on_validation_end(self, epoch, self.validate(val))
            if self.should_stop:
                break
        return epoch


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1)))
    train, val = make_split(rank)
    history = History()
    trainer = Trainer(model, CallbackList([history, Patience(2, min_delta=0.02)]))
    last = trainer.fit(train, val, 400)
    best = torch.tensor([min(history.values), float(last)])
    out = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_gather(out, best)
    if rank == 0:
        print("best per rank", [o.tolist() for o in out])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
