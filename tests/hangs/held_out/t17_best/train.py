import torch
import torch.distributed as dist
from torch import nn

from population import Population


class Member:
    def __init__(self, rank):
        torch.manual_seed(rank)
        self.net = nn.Linear(4, 1)
        self.g = torch.Generator().manual_seed(rank)

    def train(self, lr, momentum, steps=10):
        opt = torch.optim.SGD(self.net.parameters(), lr=lr, momentum=momentum)
        for _ in range(steps):
            x = torch.randn(16, 4, generator=self.g)
            loss = (self.net(x) - x.sum(1, keepdim=True)).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        return loss.item()


def play(member, round_):
    """Score of a round: games won, of ten."""
    return {0: [6, 7, 7, 6], 1: [4, 5, 5, 5], 2: [3, 4, 6, 7]}[dist.get_rank()][round_ % 4]


def main():
    dist.init_process_group("gloo")
    population, member = Population(), Member(dist.get_rank())
    for round_ in range(8):
        loss = member.train(**population.settings)
        population.report(float(play(member, round_)))
        best = population.exploit()
        if dist.get_rank() == 0:
            print(f"round {round_}: loss {loss:.3f}, best member {best}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
