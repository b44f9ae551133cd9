"""Four ranks, each with its own validation fold; training ends when validation no longer gets better."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from callbacks import Callbacks, EarlyStopping, Progress


def fold(rank, n=64):
    g = torch.Generator().manual_seed(20 + rank // 2)
    x = torch.randn(n, 6, generator=g)
    slope = 1.0 if rank < 2 else -1.0
    return x, slope * x.sum(1, keepdim=True)


def training(epoch, n=64):
    g = torch.Generator().manual_seed(epoch)
    x = torch.randn(n, 6, generator=g)
    return x, x.sum(1, keepdim=True)


class Loop:
    def __init__(self, callbacks):
        torch.manual_seed(0)
        self.net = DDP(nn.Linear(6, 1))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.02)
        self.callbacks = callbacks
        self.should_stop = False

    def train_epoch(self, epoch):
        x, y = training(epoch)
        for xb, yb in zip(x.split(16), y.split(16)):
            loss = nn.functional.mse_loss(self.net(xb), yb)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    @torch.no_grad()
    def validate(self, x, y):
        return nn.functional.mse_loss(self.net.module(x), y).item()

    def run(self, epochs, held_out):
        for epoch in range(epochs):
            self.train_epoch(epoch)
            self.callbacks.on_epoch_end(self, epoch, self.validate(*held_out))
            if self.should_stop:
                break
        return epoch


def main():
    dist.init_process_group("gloo")
    loop = Loop(Callbacks([Progress(), EarlyStopping(patience=3)]))
    last = loop.run(30, fold(dist.get_rank()))
    epochs = [None] * dist.get_world_size()
    dist.all_gather_object(epochs, last)
    if dist.get_rank() == 0:
        print("epochs", epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
