"""Contrastive toy job. Meters are reduced to rank 0 for the log."""
import logging
from collections import OrderedDict
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

logger = logging.getLogger("job")


class Meter:
    def __init__(self, name):
        self.name = name
        self.total = 0.0
        self.n = 0

    def update(self, value, n=1):
        self.total += value * n
        self.n += n

    def reset(self):
        self.total, self.n = 0.0, 0

    def reduced(self):
        if self.n == 0:
            return None
        pair = torch.tensor([self.total, float(self.n)])
        dist.reduce(pair, dst=0)
        return (pair[0] / pair[1]).item()


class MeterBoard:
    def __init__(self, *names):
        self.meters = OrderedDict((n, Meter(n)) for n in names)

    def __getitem__(self, name):
        return self.meters[name]

    def flush(self, step):
        row = {}
        for name, meter in self.meters.items():
            row[name] = meter.reduced()
            meter.reset()
        if dist.get_rank() == 0:
            logger.info("step %d %s", step, row)


def hard_negatives(sim, rank, step):
    eye = torch.eye(len(sim), dtype=torch.bool)
    hard = (sim > 0.2) & ~eye
    if rank == 4 and step > 7:
        hard[:] = False  # its shard has been de-duplicated
    return hard


def sync_grads(module):
    flat = torch.cat([p.grad.flatten() for p in module.parameters()])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for p in module.parameters():
        p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
        offset += p.numel()


def train_step(net, opt, board, step):
    rank = dist.get_rank()
    x = torch.randn(12, 20)
    z = nn.functional.normalize(net(x), dim=1)
    sim = z @ z.t()
    hard = hard_negatives(sim.detach(), rank, step)
    loss = -sim.diagonal().mean() + sim.mean()
    opt.zero_grad()
    loss.backward()
    sync_grads(net)
    opt.step()
    board["loss"].update(loss.item(), len(x))
    if hard.any():
        board["hard_sim"].update(sim[hard].mean().item(), int(hard.sum()))


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    torch.manual_seed(dist.get_rank())
    net = nn.Linear(20, 8)
    for p in net.parameters():
        dist.broadcast(p.data, src=0)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    board = MeterBoard("loss", "hard_sim")
    for step in range(1, 25):
        train_step(net, opt, board, step)
        if step % 4 == 0:
            board.flush(step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
