from contextlib import nullcontext

import torch
from torch import nn


class AccumulatingLoop:
    def __init__(self, model, opt, every):
        self.model = model
        self.opt = opt
        self.every = every
        self.updates = 0

    def boundary(self, index, total):
        return (index + 1) % self.every == 0 or index + 1 == total

    def micro_step(self, batch):
        x, y = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self.model(x).squeeze(-1), y)
        (loss / self.every).backward()
        return loss.detach()

    def epoch(self, loader):
        losses = []
        for index, batch in enumerate(loader):
            update = self.boundary(index, len(loader))
            with nullcontext() if update else self.model.no_sync():
                losses.append(self.micro_step(batch))
            if update:
                self.opt.step()
                self.opt.zero_grad()
                self.updates += 1
        return torch.stack(losses)
