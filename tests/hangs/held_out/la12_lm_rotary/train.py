import torch
import torch.distributed as dist
from torch.nn import functional as F

from lm import Lm

VOCAB = 80


def stories(rank, count):
    """One batch per story, as long as its longest sentence."""
    g = torch.Generator().manual_seed(70 + rank)
    for number in range(count):
        longest = int(torch.randint(20, 33, (1,), generator=g))
        if rank == 1 and number == 19:
            longest = 41
        yield torch.randint(VOCAB, (4, longest), generator=g)


def average_gradients(model, world):
    grads = [p.grad for p in model.parameters()]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    for g, piece in zip(grads, flat.div_(world).split([g.numel() for g in grads])):
        g.copy_(piece.view_as(g))


def sync_buffers(model):
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Lm(VOCAB)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, ids in enumerate(stories(rank, 120)):
        if step % 6 == 5:
            sync_buffers(model)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model, world)
        optimizer.step()
        if step % 6 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
