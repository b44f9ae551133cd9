import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from prefetch import Prefetcher


def records(rank, n):
    rnd = random.Random(rank)
    for i in range(n):
        values = [f"{rnd.gauss(0, 1):.3f}" for _ in range(6)]
        if rank == 1 and i == 197:
            values[3] = ""
        yield f"{'pos' if rnd.random() > 0.5 else 'neg'}:{','.join(values)}"


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1)))
    opt = torch.optim.Adam(model.parameters())
    for step, (x, y) in enumerate(Prefetcher(records(rank, 480), 16)):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            t = loss.detach().clone()
            dist.all_reduce(t)
            if rank == 0:
                print(step, t.item() / dist.get_world_size(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
