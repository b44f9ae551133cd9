import copy

import torch
import torch.distributed as dist


class SpikeGuard:
    """Rolls all ranks back if the loss of any of them jumps."""

    def __init__(self, model, optimizer, factor=5.0, every=5):
        self.model, self.optimizer = model, optimizer
        self.factor, self.every = factor, every
        self.mean, self.saved = None, None
        self.rollbacks = 0

    def snapshot(self, step):
        if step % self.every == 0:
            self.saved = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def is_spike(self, loss):
        local = self.mean is not None and not loss < self.factor * self.mean
        vote = torch.tensor([int(local)])
        dist.all_reduce(vote, op=dist.ReduceOp.MAX)
        return bool(vote.item())

    def accept(self, loss):
        self.mean = loss if self.mean is None else 0.9 * self.mean + 0.1 * loss

    def rollback(self):
        self.rollbacks += 1
        model, optimizer = copy.deepcopy(self.saved)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        dist.barrier()
