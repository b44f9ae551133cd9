"""Gradient exchange that switches to a compressed form once the loss has settled."""
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


def local_rank_pairs():
    """Two ranks make up a node here."""
    return dist.get_rank() // 2


class DenseExchange:
    def __call__(self, flat):
        dist.all_reduce(flat)
        return flat / dist.get_world_size()


class TopKExchange:
    def __init__(self, ratio=0.25):
        self.ratio = ratio
        self.residual = None

    def __call__(self, flat):
        if self.residual is not None:
            flat = flat + self.residual
        k = max(1, int(flat.numel() * self.ratio))
        idx = flat.abs().topk(k).indices
        packed = torch.stack([idx.float(), flat[idx]])
        self.residual = flat.clone()
        self.residual[idx] = 0
        parts = [torch.empty_like(packed) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, packed)
        out = torch.zeros_like(flat)
        for part in parts:
            out.index_add_(0, part[0].long(), part[1])
        return out / len(parts)


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 1))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.dense, self.topk = DenseExchange(), TopKExchange()
        # average of the node, not of the job
        self.smooth = 1.0
        self.node = local_rank_pairs()

    def data(self, step):
        g = torch.Generator().manual_seed(step * 10 + self.node)
        x = torch.randn(32, 6, generator=g)
        scale = 0.2 if self.node == 0 else 3.0
        return x, scale * x[:, :1]

    def step(self, i):
        x, y = self.data(i)
        loss = nn.functional.mse_loss(self.net(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.smooth = 0.9 * self.smooth + 0.1 * loss.item()
        flat = torch.cat([p.grad.flatten() for p in self.net.parameters()])
        if self.smooth > 0.6:
            flat = self.dense(flat)
        else:
            flat = self.topk(flat)
        self.scatter(flat)
        self.opt.step()

    def scatter(self, flat):
        for p, g in zip(self.net.parameters(), flat.split([p.numel() for p in self.net.parameters()])):
            p.grad.copy_(g.view_as(p))


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    trainer = Trainer()
    for i in range(40):
        trainer.step(i)
        if os.environ["LOCAL_RANK"] == "0":
            print(i, round(trainer.smooth, 3), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
