import os
import signal
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


class Stopper:
    def __init__(self, rank):
        self.flag = False
        signal.signal(signal.SIGUSR1, self._set)
        if rank == 1:
            threading.Timer(6.0, os.kill, (os.getpid(), signal.SIGUSR1)).start()

    def _set(self, signum, frame):
        self.flag = True

    def agreed(self):
        flag = torch.tensor([int(self.flag)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())


def batches(rank, epoch):
    gen = torch.Generator().manual_seed(epoch * 10 + rank)
    for _ in range(6 + 3 * rank):
        x = torch.randn(8, 10, generator=gen)
        if x[0, 0] > 1.2:
            time.sleep(0.3)
        yield x, x[:, 0]


def run_epoch(model, opt, rank, epoch):
    total = torch.zeros(2)
    with Join([model]):
        for x, y in batches(rank, epoch):
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(x).squeeze(-1), y)
            loss.backward()
            opt.step()
            total += torch.tensor([loss.item(), 1.0])
    return total


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DDP(nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    stopper = Stopper(rank)
    for epoch in range(10_000):
        total = run_epoch(model, opt, rank, epoch)
        dist.all_reduce(total)
        if rank == 0 and epoch % 10 == 0:
            print(f"epoch {epoch} loss {(total[0] / total[1]).item():.3f}", flush=True)
        if stopper.agreed():
            break
    if rank == 0:
        print("stopped after epoch", epoch, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
