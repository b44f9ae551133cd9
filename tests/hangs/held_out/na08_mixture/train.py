"""Language model on a mixture of corpora whose weights change by phase."""
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from mixture import Mixture

PHASES = [
    {"web": 8, "code": 2},
    {"web": 7, "code": 2, "dialog": 2},
]
PICKS = 24


def tokens(document):
    name, number = document
    generator = torch.Generator().manual_seed(len(name) * 1000 + number)
    return torch.randint(0, 64, (4, 17), generator=generator)


def train_step(model, optimizer, batch):
    logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    optimizer.step()
    return loss.item()


def phase_report(phase, losses):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (len(losses), sum(losses) / len(losses)))
    if dist.get_rank() == 0:
        print(f"phase {phase}: {everyone}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for phase, weights in enumerate(PHASES):
        losses = []
        for document in Mixture(weights, PICKS, rank, world, seed=phase):
            losses.append(train_step(model, optimizer, tokens(document)))
            time.sleep(0.07)
        phase_report(phase, losses)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
