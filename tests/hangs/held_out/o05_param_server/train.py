import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

ROUNDS = 20


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


class Server:
    def __init__(self, world):
        self.weights = flat(make_model().parameters())
        self.pending = {r: ROUNDS for r in range(1, world)}

    def run(self):
        inbox = torch.empty_like(self.weights)
        while any(self.pending.values()):
            worker = dist.recv(inbox)
            self.weights -= 0.01 * inbox
            dist.send(self.weights, dst=worker)
            self.pending[worker] -= 1
            if not self.pending[worker]:
                print(f"worker {worker} has finished", flush=True)


class Worker:
    def __init__(self, rank):
        self.rank = rank
        self.model = make_model()
        self.gen = torch.Generator().manual_seed(rank)

    def gradient(self):
        x = torch.randn(16, 10, generator=self.gen)
        self.model.zero_grad()
        nn.functional.mse_loss(self.model(x)[:, 0], x[:, 0]).backward()
        return flat(p.grad for p in self.model.parameters())

    def run(self):
        for _ in range(ROUNDS):
            grad = self.gradient()
            time.sleep(0.02 if self.rank == 1 else 0.25 * self.rank)
            dist.send(grad, dst=0)
            dist.recv(grad, src=0)
            torch.nn.utils.vector_to_parameters(grad, self.model.parameters())


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank, world = dist.get_rank(), dist.get_world_size()
    (Server(world) if rank == 0 else Worker(rank)).run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
