import torch
import torch.distributed as dist
from torch import nn

from tuner import Autotuner


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 16)
        self.b = nn.Linear(16, 1)

    def forward(self, x):
        return self.b(torch.sigmoid(self.a(x)))


class Rows:
    """Samples of a rank; a sequence of batches."""

    def __init__(self, rank, size=8):
        g = torch.Generator().manual_seed(rank)
        n = 80 if rank != 1 else 77
        self.x = torch.randn(n, 4, generator=g)
        self.size = size

    def __iter__(self):
        return iter(self.x.split(self.size))


def reduce_gradients(net):
    world = dist.get_world_size()
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    tuner = Autotuner()
    forward = torch.compile(net, backend=tuner, dynamic=False)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    rows = Rows(rank)
    for epoch in range(4):
        for x in rows:
            loss = (forward(x) - x.sum(1, keepdim=True)).square().mean()
            opt.zero_grad()
            loss.backward()
            reduce_gradients(net)
            opt.step()
        if rank == 0:
            print(f"epoch {epoch}: {loss.item():.4f}, compiled {tuner.compiled}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
