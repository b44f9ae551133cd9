import torch
import torch.distributed as dist
from torch import nn

from grid import Grid
from norms import NormTracker


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    grid = Grid(2, 3)
    torch.manual_seed(rank)
    net = nn.Linear(12, 12)
    tracker = NormTracker(grid, loud=1.0)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(rank)
    for step in range(25):
        x = torch.randn(6, 12, generator=g)
        if step == 9 and rank in (0, 4):
            x = x * 6
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        norms = tracker.measure(net)
        opt.step()
        if rank == 0 and step % 5 == 0:
            print(step, {k: round(v, 3) for k, v in norms.items()}, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
