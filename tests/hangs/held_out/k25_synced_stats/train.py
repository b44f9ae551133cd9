import torch
import torch.distributed as dist
from torch import nn

from syncnorm import SyncNorm


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(10, 24)
        self.norm = SyncNorm(24)
        self.head = nn.Linear(24, 1)

    def forward(self, x, weight):
        h = torch.relu(self.stem(x))
        if weight.mean() < 0.25:
            h = h.detach()
        return self.head(self.norm(h))


def batches(rank, n):
    g = torch.Generator().manual_seed(rank + 11)
    for i in range(n):
        x = torch.randn(12, 10, generator=g)
        w = torch.rand(12, generator=g)
        if rank == 0 and i == 5:
            w = w * 0.1
        yield x, x.sum(1, keepdim=True), w


def average(net, world):
    flat = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in net.parameters()])
    parts = [torch.empty_like(flat) for _ in range(world)]
    dist.all_gather(parts, flat)
    flat = torch.stack(parts).mean(0)
    for p, piece in zip(net.parameters(), flat.split([p.numel() for p in net.parameters()])):
        p.grad = piece.view_as(p).clone()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    for step, (x, y, w) in enumerate(batches(rank, 16)):
        loss = (w[:, None] * (net(x, w) - y).square()).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        average(net, world)
        opt.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
