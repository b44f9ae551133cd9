import copy

import torch
import torch.distributed as dist


class EMA:
    def __init__(self, model, decay=0.9):
        self.shadow = copy.deepcopy(model)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)


class Population:
    """Replicas train with their own learning rate; the best one is copied to all now and then."""

    def __init__(self, size, rank):
        self.rank = rank
        self.scores = torch.full((size,), float("inf"))

    def share(self, score):
        rows = [torch.zeros(1) for _ in range(len(self.scores))]
        dist.all_gather(rows, torch.tensor([score]))
        self.scores = torch.cat(rows)

    def observe(self, score):
        self.scores[self.rank] = score

    @property
    def best(self):
        return int(self.scores.argmin())

    def exploit(self, ema, model):
        source = self.best
        for s, p in zip(ema.shadow.parameters(), model.parameters()):
            dist.broadcast(s.data, src=source)
            p.data.copy_(s.data)
        return source
