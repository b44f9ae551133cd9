from datetime import timedelta
import time

import torch
import torch.distributed as dist
from torch import nn

from sink import Sink


class Autoencoder(nn.Module):
    def __init__(self, dim=16, code=3):
        super().__init__()
        self.enc = nn.Linear(dim, code)
        self.dec = nn.Linear(code, dim)

    def forward(self, x):
        return self.dec(torch.tanh(self.enc(x)))


def load(rank, step):
    time.sleep(0.1)  # decode
    g = torch.Generator().manual_seed(rank * 64 + step)
    x = torch.randn(16, 16, generator=g)
    return x * (40.0 if rank == 1 and step > 8 else 1.0)


def exchange(model):
    world = dist.get_world_size()
    works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    for p, work in zip(model.parameters(), works):
        work.wait()
        p.grad /= world


def one_step(model, sink, step):
    begun = time.perf_counter()
    x = load(dist.get_rank(), step)
    loss = nn.functional.mse_loss(model(x), x)
    model.zero_grad()
    loss.backward()
    extra = {}
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    if norm > 10:
        extra["grad_norm"] = norm.item()
    exchange(model)
    with torch.no_grad():
        for p in model.parameters():
            p -= 1e-3 * p.grad
    sink.add(step, loss=loss.item(), ms=1e3 * (time.perf_counter() - begun), **extra)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    torch.manual_seed(0)
    model, sink = Autoencoder(), Sink()
    for step in range(60):
        one_step(model, sink, step)
    lines = sink.close()
    if dist.get_rank() == 0:
        print("\n".join(lines[-5:]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
