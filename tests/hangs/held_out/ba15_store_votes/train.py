"""Training whose learning rate is voted on every few steps."""
import copy

import torch
import torch.distributed as dist
from torch import nn

from consensus import Ballot, Voter


def make_model():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 1))


class Data:
    def __init__(self, rank):
        self.rank = rank
        self.gen = torch.Generator().manual_seed(70 + rank)

    def batch(self, step):
        x = torch.randn(20, 4, generator=self.gen)
        x = x[x[:, 1] < self.limit(step)]
        return x, x[:, :1]

    def limit(self, step):
        """Each rank has its own period without useful samples."""
        return -9.0 if step == (17, 10, 18)[self.rank] else 1.5


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def try_rates(model, x, y, rates):
    """Loss after one step with each of the rates."""
    losses = {}
    for rate in rates:
        trial = copy.deepcopy(model)
        loss_of(trial, x, y).backward()
        with torch.no_grad():
            for p in trial.parameters():
                p -= rate * p.grad
            losses[rate] = loss_of(trial, x, y).item()
    return losses


def average(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    pieces = flat.div(dist.get_world_size()).split([p.numel() for p in model.parameters()])
    for p, piece in zip(model.parameters(), pieces):
        p.grad.copy_(piece.view_as(p))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, data, voter = make_model(), Data(rank), Voter(Ballot())
    rate = 0.01
    for step in range(20):
        x, y = data.batch(step)
        if step % 5 == 0:
            rate = voter.choose(try_rates(model, x, y, (rate, rate * 1.5, rate * 0.5)))
        model.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        average(model)
        with torch.no_grad():
            for p in model.parameters():
                p -= rate * p.grad
        if rank == 0:
            print(step, loss.item(), rate, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
