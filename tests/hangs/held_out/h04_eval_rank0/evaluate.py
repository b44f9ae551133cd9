"""Held-out evaluation."""
import torch
import torch.distributed as dist


class Evaluator:
    def __init__(self, n=64, width=12):
        g = torch.Generator().manual_seed(5)
        self.x = torch.randn(n, width, generator=g)
        self.y = self.x.argmax(1) % 3
        self.group = None
        self.history = []

    def _quiet_group(self):
        # evaluation must not disturb the groups of training
        if self.group is None:
            self.group = dist.new_group(ranks=[0])
        return self.group

    @torch.no_grad()
    def __call__(self, model):
        group = self._quiet_group()
        model.eval()
        hits = (model(self.x).argmax(1) == self.y).float().sum()
        total = torch.tensor(float(len(self.x)))
        both = torch.stack([hits, total])
        dist.all_reduce(both, group=group)
        model.train()
        self.history.append((both[0] / both[1]).item())
        return self.history[-1]
