"""A signal on one rank makes all ranks save and stop at the same step."""
import signal
from datetime import timedelta
import time

import torch
import torch.distributed as dist
from torch import nn


class Stop:
    def __init__(self, after):
        self.flag = torch.zeros(1)
        signal.signal(signal.SIGALRM, self.handler)
        if after:
            signal.setitimer(signal.ITIMER_REAL, after)

    def handler(self, signum, frame):
        self.flag[0] = 1

    def agreed(self):
        flag = self.flag.clone()
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())


def train(model, rank, stop):
    for step in range(1000):
        time.sleep(0.03)
        g = torch.Generator().manual_seed(rank + 3 * step)
        x = torch.randn(8, 4, generator=g)
        loss = model(x).pow(2).mean()
        model.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.data.add_(p.grad, alpha=-0.01)
        if stop.agreed():
            return step
    return step


def save(model, rank, step):
    if rank == 0:
        state = {k: v.clone() for k, v in model.state_dict().items()}
        print("saved", len(state), "tensors at a step > 0:", step > 0, flush=True)
    dist.barrier()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    stop = Stop(after=2.5 if rank == 1 else 0)
    save(model, rank, train(model, rank, stop))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
