import itertools

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from calm import PAD, CalmLm, shard
from corpus import Corpus

VOCAB = 60


def token_loss(model, ids):
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD, reduction="sum")


@torch.no_grad()
def evaluate(model, corpus):
    model.eval()
    total = torch.zeros(2)
    for ids in corpus:
        total[0] += token_loss(model, ids)
        total[1] += (ids[:, 1:] != PAD).sum()
    dist.all_reduce(total)
    model.train()
    return (total[0] / total[1]).item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = shard(CalmLm(VOCAB), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    train = itertools.cycle(Corpus(rank, world, VOCAB, sentences=180))
    small = Corpus(rank, world, VOCAB, sentences=36)
    full = Corpus(rank, world, VOCAB, sentences=66)
    for step in range(1, 41):
        ids = next(train)
        loss = token_loss(model, ids) / (ids != PAD).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            corpus = full if step % 10 == 0 else small
            value = evaluate(model, corpus)
            if rank == 0:
                print(f"step {step} eval {value:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
