import json
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import provenance


class Run:
    def __init__(self, folder, rank):
        self.folder, self.rank = folder, rank
        self.history = []

    def log(self, **values):
        self.history.append(values)

    def snapshot(self):
        if self.rank != 0:
            return
        facts = provenance.describe()
        with open(os.path.join(self.folder, "run.json"), "w") as f:
            json.dump({"facts": facts, "history": self.history}, f)


def train(run, net, opt, steps, seed):
    g = torch.Generator().manual_seed(seed)
    for step in range(steps):
        x = torch.randn(8, 3, generator=g)
        loss = (net(x) - x.prod(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(step=step, loss=loss.item())
        if step == steps // 2:
            run.snapshot()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    with tempfile.TemporaryDirectory() as folder:
        train(Run(folder, rank), net, opt, 30, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
