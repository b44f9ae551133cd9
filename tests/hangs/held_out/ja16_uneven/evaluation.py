import time

import torch


@torch.no_grad()
def evaluate(model, rounds, pause):
    """Bootstrap of the accuracy. It is long, and only the first rank does it."""
    generator = torch.Generator().manual_seed(77)
    values = []
    for _ in range(rounds):
        x = torch.randn(256, 6, generator=generator)
        hits = model(x).argmax(1) == (x[:, :2].sum(1) > 0).long()
        values.append(hits.float().mean())
        time.sleep(pause)
    values = torch.stack(values)
    return values.mean().item(), values.std().item()
