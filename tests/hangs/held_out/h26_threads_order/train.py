"""Loss statistics are gathered by a thread while the loop goes on."""
import queue
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class StatThread(threading.Thread):
    """Gathers the loss of every tenth step, on the group of training."""

    def __init__(self):
        super().__init__(daemon=True)
        self.inbox = queue.Queue()
        self.last = None

    def run(self):
        while True:
            item = self.inbox.get()
            if item is None:
                return
            step, value, delay = item
            time.sleep(delay)
            rows = [torch.zeros(2) for _ in range(dist.get_world_size())]
            dist.all_gather(rows, torch.tensor([float(step), value]))
            self.last = torch.stack(rows).mean(0)


class Pipeline:
    def __init__(self, rank):
        self.rank = rank
        self.busy = 0.0

    def summary_cost(self, step):
        """Writing histograms comes before the exchange; the disk of rank 2 is slow at times."""
        return 1.6 if self.rank == 2 and step == 20 else 0.0

    def batch(self, step):
        if step % 10 == 1 and step > 1:
            time.sleep(0.8)  # a new shard is opened
        g = torch.Generator().manual_seed(1000 * self.rank + step)
        x = torch.randn(8, 5, generator=g)
        return x, x.max(1, keepdim=True).values


def train(model, pipe, stats, steps):
    params = list(model.parameters())
    for step in range(1, steps + 1):
        x, y = pipe.batch(step)
        loss = nn.functional.mse_loss(model(x), y)
        model.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.view(-1) for p in params])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for p, g in zip(params, flat.split([p.numel() for p in params])):
            p.data.add_(g.view_as(p), alpha=-0.05)
        if step % 10 == 0:
            stats.inbox.put((step, loss.item(), pipe.summary_cost(step)))
        if pipe.rank == 0:
            print(step, round(loss.item(), 4), flush=True)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
    stats = StatThread()
    stats.start()
    train(model, Pipeline(dist.get_rank()), stats, 60)
    stats.inbox.put(None)
    stats.join()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
