import logging

import torch
from torch import nn

from batches import BUCKETS

log = logging.getLogger(__name__)


class Stepper:
    def __init__(self, model, batch):
        self.model = model
        self.compiled = torch.compile(model, backend="eager", dynamic=False)
        self.batch = batch
        self.skipped = 0

    def warm_up(self):
        """Compiles all buckets before the first step, so that no rank stalls the others later."""
        for size in BUCKETS:
            self.compiled(torch.ones(self.batch, size, dtype=torch.long)).sum().backward()
        self.model.zero_grad()
        torch.compiler.set_stance("fail_on_recompile")

    def loss(self, ids, tokens):
        try:
            logits = self.compiled(ids)
        except RuntimeError as error:
            self.skipped += 1
            log.warning("batch skipped: %s", str(error).splitlines()[0])
            return None
        loss = nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0, reduction="sum")
        return loss / tokens
