from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from evaluate import Evaluator


@dataclass
class Config:
    rounds: int = 8
    local_steps: int = 3
    eval_after: int = 3
    momentum_after: int = 5
    lr: float = 0.05


class LocalSGD:
    """Some local steps, then parameters are averaged."""

    def __init__(self, cfg):
        torch.manual_seed(0)
        self.cfg = cfg
        self.model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=cfg.lr)
        self.rank = dist.get_rank()
        self.gen = torch.Generator().manual_seed(100 + self.rank)
        self.slow_group = None
        self.slow = None

    def local(self):
        for _ in range(self.cfg.local_steps):
            x = torch.randn(16, 12, generator=self.gen)
            loss = nn.functional.cross_entropy(self.model(x), x.argmax(1) % 3)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    def average(self):
        flat = parameters_to_vector(self.model.parameters()).detach()
        dist.all_reduce(flat)
        vector_to_parameters(flat / dist.get_world_size(), self.model.parameters())

    def outer_momentum(self):
        """The slow weights travel in a group of their own."""
        if self.slow_group is None:
            self.slow_group = dist.new_group()
            self.slow = parameters_to_vector(self.model.parameters()).detach().clone()
        fast = parameters_to_vector(self.model.parameters()).detach()
        self.slow.lerp_(fast, 0.5)
        dist.broadcast(self.slow, src=0, group=self.slow_group)
        vector_to_parameters(self.slow.clone(), self.model.parameters())


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    cfg = Config()
    job = LocalSGD(cfg)
    evaluator = Evaluator()
    for r in range(cfg.rounds):
        job.local()
        job.average()
        if r >= cfg.momentum_after:
            job.outer_momentum()
        if job.rank == 0 and r >= cfg.eval_after:
            print("round", r, "accuracy", evaluator(job.model), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
