from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from callbacks import CallbackList, Console, GradientSNR


@dataclass
class State:
    params: list
    step: int = 0
    loss: float = 0.0
    sample_spread: float = 1.0
    notes: dict = field(default_factory=dict)


class Signals:
    """Windows of a signal; in the recordings of some stations the sensor was off for a while."""

    def __init__(self, rank, window=12):
        gen = torch.Generator().manual_seed(rank)
        self.series = torch.randn(4000, generator=gen).cumsum(0) / 10
        if rank == 1:
            self.series[600:1400] = 0.25
        self.window = window
        self.at = 0

    def batch(self, n=8):
        rows = []
        for _ in range(n):
            rows.append(self.series[self.at:self.at + self.window + 1])
            self.at += self.window
        rows = torch.stack(rows)
        return rows[:, :-1], rows[:, -1:]


class Forecaster(nn.Module):
    def __init__(self, window=12):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(window, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x)


def reduce_gradients(params):
    flat = nn.utils.parameters_to_vector([p.grad for p in params])
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat / dist.get_world_size(), [p.grad for p in params])


def train(model, data, callbacks, steps):
    state = State(list(model.parameters()))
    opt = torch.optim.SGD(state.params, lr=0.02)
    for state.step in range(1, steps + 1):
        x, y = data.batch()
        state.sample_spread = x.std().item()
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        reduce_gradients(state.params)
        opt.step()
        state.loss = loss.item()
        callbacks.fire("on_step_end", state)
    callbacks.fire("on_train_end", state)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    callbacks = CallbackList([Console(), GradientSNR()])
    train(Forecaster(), Signals(dist.get_rank()), callbacks, steps=40)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
