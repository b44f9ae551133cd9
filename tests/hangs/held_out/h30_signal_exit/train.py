from datetime import timedelta
import time

import torch
import torch.distributed as dist
from torch import nn

from preempt import Preemption, Saver

# seconds of the allocation of each node; that of rank 1 began earlier
ALLOCATION = {0: 3000.0, 1: 3.0, 2: 3000.0, 3: 3000.0}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(10, 6, bias=False)
        self.doc = nn.Linear(10, 6, bias=False)

    def forward(self, q, d):
        scores = self.query(q) @ self.doc(d).t()
        return nn.functional.cross_entropy(scores, torch.arange(len(q)))


def batch(rank, step):
    time.sleep(0.1)
    g = torch.Generator().manual_seed(rank * 131 + step)
    q = torch.randn(8, 10, generator=g)
    return q, q + 0.1 * torch.randn(8, 10, generator=g)


def reduce_grads(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def train(model, rank, notice, saver):
    for step in range(400):
        if notice.requested:
            saver.finish(model.state_dict(), step)
        loss = model(*batch(rank, step))
        model.zero_grad()
        loss.backward()
        reduce_grads(model)
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.05 * p.grad
        if step % 10 == 0:
            saver(model.state_dict(), step)
        if rank == 0 and step % 5 == 0:
            print(step, round(loss.item(), 4), flush=True)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Model()
    notice = Preemption(ALLOCATION[rank])
    train(model, rank, notice, Saver(rank))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
