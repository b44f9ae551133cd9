import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ckpt import Checkpointer

STEPS = 20
SAVE_EVERY = 5


def build():
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Embedding(64, 16), torch.nn.Flatten(), torch.nn.Linear(16 * 8, 64)
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def average_grads(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad.div_(world)


def batch(rank, step):
    g = torch.Generator().manual_seed(1000 * rank + step)
    tokens = torch.randint(0, 64, (4, 8), generator=g)
    return tokens, tokens[:, 0]


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank, world = dist.get_rank(), dist.get_world_size()
    model, opt = build()
    ckpt = Checkpointer(model, opt)
    started = time.time()
    for step in range(1, STEPS + 1):
        tokens, target = batch(rank, step)
        loss = F.cross_entropy(model(tokens), target)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        average_grads(model, world)
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.3f} {time.time() - started:.1f}s", flush=True)
        if step % SAVE_EVERY == 0 and rank == 0:
            ckpt.save(step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
