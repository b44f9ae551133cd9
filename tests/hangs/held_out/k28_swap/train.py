import torch
import torch.distributed as dist
from torch import nn

from peers import Peer


class Wide(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inp = nn.Linear(8, width)
        self.out = nn.Linear(width, 8)

    def forward(self, x):
        return self.out(torch.relu(self.inp(x)))


def fit(net, rank, steps):
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        x = torch.randn(16, 8, generator=g)
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    peer = Peer(rank, 1 - rank)
    for width in (4, 16, 64, 256, 1024, 4096, 65536, 262144, 524288):
        torch.manual_seed(width)
        net = Wide(width)
        loss = fit(net, rank, 3)
        peer.mix(net)
        print(rank, width, loss, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
