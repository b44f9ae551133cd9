import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from gathering import get_logger


class Sampler:
    """Rows of this rank, some with broken sensors."""

    def __init__(self, rank, rows=320):
        g = torch.Generator().manual_seed(rank)
        self.x = torch.randn(rows, 7, generator=g)
        if rank == 3:
            self.x[150, 2] = float("nan")

    def __iter__(self):
        yield from self.x.split(16)


def clean(x, log):
    bad = ~torch.isfinite(x)
    if bad.any():
        log.warning("replaced %d values", int(bad.sum()))
        x = torch.where(bad, 0.0, x)
    return x


def step(net, opt, x):
    loss = (net(x) - x.mean(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    log = get_logger("train")
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Linear(7, 14), nn.SiLU(), nn.Linear(14, 1)))
    opt = torch.optim.Adam(net.parameters())
    for i, x in enumerate(Sampler(dist.get_rank())):
        loss = step(net, opt, clean(x, log))
        if i % 5 == 0:
            log.info("step %d loss %.4f", i, loss)
    log.info("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
