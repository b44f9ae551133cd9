"""Parameter server on rank 0; workers of different speed push when they are ready."""
from datetime import timedelta
import random
import time

import torch
import torch.distributed as dist

DIM = 6
STOP = 1.0


class Server:
    def __init__(self, workers):
        self.w = torch.zeros(DIM)
        self.alive = workers
        self.served = {}

    def serve(self):
        buf = torch.empty(DIM + 1)
        while self.alive:
            sender = dist.recv(buf)
            self.served[sender] = self.served.get(sender, 0) + 1
            if buf[-1].item() == STOP:
                self.alive -= 1
                continue
            self.w -= 0.1 * buf[:-1]
            dist.send(self.w, dst=sender)
        return self.served


class Worker:
    def __init__(self, rank, pushes):
        self.rank, self.pushes = rank, pushes
        self.rng = random.Random(rank)
        self.w = torch.zeros(DIM)

    def gradient(self, i):
        g = torch.Generator().manual_seed(self.rank * 1000 + i)
        x = torch.randn(10, DIM, generator=g)
        return x.t() @ (x @ self.w - x[:, 0]) / len(x)

    def run(self):
        for i in range(self.pushes):
            time.sleep(self.rng.random() * 0.1)
            dist.send(torch.cat([self.gradient(i), torch.zeros(1)]), dst=0)
            dist.recv(self.w, src=0)
        dist.send(torch.full((DIM + 1,), STOP), dst=0)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        print(Server(world - 1).serve(), flush=True)
    else:
        Worker(rank, pushes=10 * rank).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
