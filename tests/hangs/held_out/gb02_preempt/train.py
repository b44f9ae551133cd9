import os
import signal
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from saver import Saver


class Preemption:
    def __init__(self):
        self.seen = False
        signal.signal(signal.SIGUSR2, self.handle)

    def handle(self, *_):
        self.seen = True

    def agreed(self):
        """Whether any rank has been asked to stop."""
        flag = torch.tensor([int(self.seen)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())


def accumulate(net, step, rank, micro=3):
    for i in range(micro):
        g = torch.Generator().manual_seed(step * 30 + rank * 3 + i)
        x = torch.randn(8, 7, generator=g)
        net.require_backward_grad_sync = i == micro - 1
        (nn.functional.mse_loss(net(x), x) / micro).backward()


def train(net, saver, preemption, steps=50):
    rank = dist.get_rank()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    skipped = 0
    for step in range(1, steps + 1):
        accumulate(net, step, rank)
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if torch.isfinite(norm):
            optimizer.step()
        else:
            skipped += 1
        optimizer.zero_grad()
        if step % (3 + rank) == 0:
            saver.submit(step, net.module)
        if rank == 2 and step == 31:
            os.kill(os.getpid(), signal.SIGUSR2)
        if preemption.agreed():
            break
    return step


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    preemption = Preemption()
    with tempfile.TemporaryDirectory() as folder:
        saver = Saver(folder, rank, keep=2)
        step = train(DDP(nn.Linear(7, 7)), saver, preemption)
        saver.close()
        if rank == 0:
            print("stopped at", step, "exported", saver.export(), "bytes", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
