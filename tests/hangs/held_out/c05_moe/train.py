"""Train a model with one layer of experts, one per rank."""
import torch
import torch.distributed as dist
from torch import nn

from moe import MoE

DIM, TOKENS, STEPS = 6, 12, 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.inp = nn.Linear(DIM, DIM)
        self.moe = MoE(DIM, capacity=6)
        self.out = nn.Linear(DIM, 1)
        with torch.no_grad():
            self.inp.weight.copy_(torch.eye(DIM))
            self.inp.bias.zero_()
            self.moe.router.weight.copy_(torch.eye(DIM)[: self.moe.world] * 4)

    def forward(self, x):
        return self.out(self.moe(self.inp(x)))


def batch(step, rank, world):
    """Tokens of `world` topics, evenly mixed but for long documents on a single topic."""
    gen = torch.Generator().manual_seed(100 * step + rank)
    topic = torch.arange(TOKENS) % world
    if (step, rank) in ((4, 1), (6, 0)):
        topic[: TOKENS - 2] = 2
    x = torch.randn(TOKENS, DIM, generator=gen) * 0.1
    x[torch.arange(TOKENS), topic] += 3.0
    return x, x.sum(1, keepdim=True)


def shared(net):
    return [p for n, p in net.named_parameters() if ".expert." not in n and p.grad is not None]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    for step in range(STEPS):
        x, y = batch(step, rank, world)
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        for p in shared(net):
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
