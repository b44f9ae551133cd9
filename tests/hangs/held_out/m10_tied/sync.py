import torch
import torch.distributed as dist


class GradSync:
    """Finishers run in the order of their registration."""

    def __init__(self, stage, embed_group):
        self.stage, self.embed_group = stage, embed_group
        self.norm = 0.0
        self.finishers = {}
        self.register(stage)
        self.finishers["norm"] = self._norm

    def register(self, stage):
        self.finishers.pop("tied", None)
        if stage.tied() is not None:
            self.finishers["tied"] = self._tied

    def _tied(self):
        grad = self.stage.tied().grad
        dist.all_reduce(grad, group=self.embed_group)

    def _norm(self):
        total = sum(p.grad.square().sum() for p in self.stage.parameters() if p.grad is not None)
        dist.all_reduce(total)
        self.norm = total.sqrt().item()

    def finish(self):
        for run in self.finishers.values():
            run()
        return self.norm
