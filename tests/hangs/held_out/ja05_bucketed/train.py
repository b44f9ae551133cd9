import logging

import torch
import torch.distributed as dist
from torch import nn

from batches import Documents
from stepper import Stepper

VOCABULARY = 50


class Tagger(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.mix = nn.Conv1d(width, width, 3, padding=1)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids):
        x = self.embed(ids)
        x = torch.relu(self.mix(x.transpose(1, 2)).transpose(1, 2))
        return self.head(x)


def global_tokens(ids):
    """Mean number of tokens of a rank, by which each rank divides its sum."""
    counts = torch.zeros(dist.get_world_size())
    own = (ids != 0).sum().float().reshape(1)
    dist.all_gather_into_tensor(counts, own)
    return counts.mean()


def average_gradients(model):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for grad, part in zip(grads, flat.split([g.numel() for g in grads])):
        grad.copy_(part.view_as(grad))


def main():
    logging.basicConfig(level=logging.WARNING)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = Tagger()
    stepper = Stepper(model, batch=6)
    stepper.warm_up()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(3):
        seen = 0.0
        for ids in Documents(rank, world, VOCABULARY):
            tokens = global_tokens(ids)
            loss = stepper.loss(ids, tokens)
            if loss is None:
                continue
            optimizer.zero_grad()
            loss.backward()
            average_gradients(model)
            optimizer.step()
            seen += loss.item()
        dist.barrier()
        if rank == 0:
            print(f"epoch {epoch}: {seen:.3f}, {stepper.skipped} batches skipped", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
