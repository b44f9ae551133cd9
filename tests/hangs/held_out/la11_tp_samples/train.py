import random

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from model import CONTEXT, EOS, VOCAB, TinyLm, parallel
from sampling import complete, show

PROMPTS = [[3, 4], [5, 6, 7], [8], [2, 9, 1]]


def words(step, batch=16):
    g = torch.Generator().manual_seed(step)
    ids = torch.randint(1, VOCAB, (batch, CONTEXT + 1), generator=g)
    ids[torch.rand(ids.shape, generator=g) < 0.12] = EOS
    return ids


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    random.seed(11)
    torch.manual_seed(11)
    mesh = init_device_mesh("cpu", (world,))
    model = parallel(TinyLm(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    for step in range(1, 61):
        ids = words(step)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            completions = [complete(model, prompt, limit=40) for prompt in PROMPTS]
            if rank == 0:
                show(step, completions)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
