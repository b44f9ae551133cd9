import logging
import time

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("steps")


class StepRunner:
    """Runs a training step; a failed one is tried again with a fresh compiler."""

    def __init__(self, model, opt, tries=3):
        self.model = model
        self.opt = opt
        self.tries = tries
        self.world = dist.get_world_size()

    def tokens(self, mask):
        mine = mask.sum().reshape(1)
        everyone = [torch.zeros_like(mine) for _ in range(self.world)]
        dist.all_gather(everyone, mine)
        return torch.cat(everyone).sum()

    def step(self, ids, mask):
        total = self.tokens(mask)
        logits = self.model(ids)
        loss = nn.functional.cross_entropy(logits[mask], ids[mask] % 7, reduction="sum")
        self.opt.zero_grad()
        (loss * self.world / total).backward()
        self.opt.step()
        return loss.item() / mask.sum().item()

    def __call__(self, ids, mask):
        for attempt in range(self.tries):
            try:
                return self.step(ids, mask)
            except Exception as exc:
                log.warning("attempt %d: %s", attempt, type(exc).__name__)
                torch._dynamo.reset()
                time.sleep(0.5)
        raise RuntimeError("step failed")
