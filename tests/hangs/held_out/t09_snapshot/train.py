import os
import tempfile
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from utils import log, main_process_only


@dataclass
class Trainer:
    folder: str
    save_every: int = 5
    step: int = 0
    net: nn.Module = field(init=False)
    opt: torch.optim.Optimizer = field(init=False)

    def __post_init__(self):
        torch.manual_seed(0)
        self.net = DDP(nn.Sequential(nn.Linear(10, 20), nn.GELU(), nn.Linear(20, 2)))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3)

    def state_dict(self):
        return {"net": self.net.module.state_dict(), "step": torch.tensor(self.step)}

    @main_process_only
    def save(self):
        path = os.path.join(self.folder, f"step-{self.step}")
        log("saving", os.path.basename(path))
        dcp.save(self.state_dict(), checkpoint_id=path)

    def train_step(self, x, y):
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.step += 1
        return loss.item()

    def fit(self, batches):
        for x, y in batches:
            loss = self.train_step(x, y)
            if self.step % self.save_every == 0:
                self.save()
        return loss


def batches(rank, n=20):
    g = torch.Generator().manual_seed(rank)
    for _ in range(n):
        x = torch.randn(8, 10, generator=g)
        yield x, (x.sum(1) > 0).long()


def main():
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(folder)
        log("final loss", trainer.fit(batches(dist.get_rank())))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
