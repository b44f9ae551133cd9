import torch
import torch.distributed as dist
import torch.nn.functional as F

from data import loader
from moco import MemoryQueue, MoCo


def average_gradients(params):
    grads = torch.cat([p.grad.flatten() for p in params])
    dist.all_reduce(grads)
    grads /= dist.get_world_size()
    at = 0
    for p in params:
        p.grad.copy_(grads[at:at + p.numel()].view_as(p))
        at += p.numel()


def train_step(model, queue, optimizer, batch):
    a, b, valid = batch
    logits, keys = model(a, b, queue.keys.clone())
    target = torch.zeros(len(a), dtype=torch.long)
    losses = F.cross_entropy(logits, target, reduction="none")
    loss = (losses * valid).sum() / valid.sum().clamp(min=1)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    queue.enqueue(keys, valid)
    average_gradients(list(model.query.parameters()))
    optimizer.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model, queue = MoCo(), MemoryQueue(96, 8)
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.05)
    for epoch in range(2):
        total = 0.0
        for batch in loader(rank, world):
            total += train_step(model, queue, optimizer, batch)
        mean = torch.tensor([total])
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item() / world:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
