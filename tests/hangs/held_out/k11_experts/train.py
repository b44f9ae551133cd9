import torch
import torch.distributed as dist
from torch import nn

from moe import MoE


class Net(nn.Module):
    def __init__(self, d, world):
        super().__init__()
        self.embed = nn.Linear(6, d)
        self.moe = MoE(d, world)
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        return self.head(self.moe(self.embed(x)))


def shared(net):
    return [p for n, p in net.named_parameters() if ".expert." not in n]


def sync_grads(params, world):
    for p in params:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= world


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Net(16, world)
    with torch.no_grad():
        net.moe.gate.bias[1] = -0.6
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    g = torch.Generator().manual_seed(rank)
    for step in range(300):
        x = torch.randn(2, 6, generator=g)
        loss = (net(x) - x[:, :1]).pow(2).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        sync_grads(shared(net), world)
        opt.step()
    if rank == 0:
        print("done", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
