"""Two threads with collectives, each on a group of its own."""
import queue
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class Monitor(threading.Thread):
    def __init__(self, group):
        super().__init__(daemon=True)
        self.group = group
        self.inbox = queue.Queue()
        self.table = []

    def run(self):
        while True:
            item = self.inbox.get()
            if item is None:
                return
            rows = [None] * dist.get_world_size()
            dist.all_gather_object(rows, item, group=self.group)
            self.table.append(rows)


def sync(params):
    for p in params:
        dist.all_reduce(p.grad)
        p.grad.div_(dist.get_world_size())


def step_once(model, params, rank, step):
    g = torch.Generator().manual_seed(rank * 77 + step)
    x = torch.randn(32, 6, generator=g)
    loss = nn.functional.huber_loss(model(x), x.sin().sum(1, keepdim=True))
    loss.backward()
    sync(params)
    with torch.no_grad():
        for p in params:
            p -= 0.05 * p.grad
            p.grad = None
    return loss.item()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    params = list(model.parameters())
    monitor = Monitor(dist.new_group())
    monitor.start()
    for step in range(120):
        loss = step_once(model, params, rank, step)
        if step % 6 == 0:
            monitor.inbox.put({"rank": rank, "step": step, "loss": round(loss, 3)})
    monitor.inbox.put(None)
    monitor.join()
    if rank == 0:
        print(len(monitor.table), monitor.table[-1], flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
