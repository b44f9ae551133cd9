"""A prefetching thread per rank, and a second thread that averages EMA weights in its own group."""
import queue
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Feed(threading.Thread):
    def __init__(self, rank, n):
        super().__init__(daemon=True)
        self.rank, self.n, self.q = rank, n, queue.Queue(3)
        self.start()

    def run(self):
        g = torch.Generator().manual_seed(self.rank)
        for i in range(self.n):
            if (i + self.rank) % 9 == 0:
                threading.Event().wait(0.7)
            self.q.put(torch.randn(16, 7, generator=g))
        self.q.put(None)

    def __iter__(self):
        return iter(self.q.get, None)


class EmaThread(threading.Thread):
    def __init__(self, size):
        super().__init__()
        self.group = dist.new_group()
        self.ema, self.jobs = torch.zeros(size), queue.Queue()
        self.start()

    def run(self):
        for flat in iter(self.jobs.get, None):
            dist.all_reduce(flat, group=self.group)
            self.ema.lerp_(flat / dist.get_world_size(self.group), 0.1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(7, 28), nn.ReLU(), nn.Linear(28, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    ema = EmaThread(sum(p.numel() for p in model.parameters()))
    for step, x in enumerate(Feed(rank, 60)):
        loss = (model(x) - x.amax(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            ema.jobs.put(nn.utils.parameters_to_vector(model.parameters()).detach().clone())
    ema.jobs.put(None)
    ema.join()
    dist.barrier()
    print(f"rank {rank} ema {ema.ema.norm():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
