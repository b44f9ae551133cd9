from datetime import timedelta
import logging

import torch
import torch.distributed as dist
from torch import nn

import records

WIDTH, BATCH, STEPS = 10, 4, 24
log = logging.getLogger(__name__)


def read_batch(blobs, step):
    rows = [records.unpack(b) for b in blobs[step * BATCH:(step + 1) * BATCH]]
    return torch.stack(rows)


class EMA:
    """Exponential average of the weights, kept on rank 0 only and shared now and then."""

    def __init__(self, params):
        self.shadow = [p.detach().clone() for p in params]

    def update(self, params):
        for s, p in zip(self.shadow, params):
            s.lerp_(p.detach(), 0.1)

    def share(self):
        for s in self.shadow:
            dist.broadcast(s, src=0)


def sync(params):
    for p in params:
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad.div_(dist.get_world_size())


def train_step(model, params, x, lr):
    loss = (model(x) - x).abs().mean()
    loss.backward()
    sync(params)
    with torch.no_grad():
        for p in params:
            p.sub_(lr * p.grad)
            p.grad = None
    return loss.item()


def main():
    logging.basicConfig(level=logging.WARNING)
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH))
    params = list(model.parameters())
    ema = EMA(params)
    blobs = records.make_file(rank, STEPS * BATCH, WIDTH)
    for step in range(STEPS):
        try:
            x = read_batch(blobs, step)
        except ValueError:
            continue
        loss = train_step(model, params, x, 0.05)
        ema.update(params)
        if step % 5 == 4:
            ema.share()
            log.warning("[%d] step %d loss %.4f", rank, step, loss)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
