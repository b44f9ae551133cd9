import torch
import torch.distributed as dist
from torch import nn


class Member:
    def __init__(self, rank, lr):
        torch.manual_seed(rank)
        self.net = nn.Linear(6, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=lr)

    def step(self, x, y):
        loss = (self.net(x) - y).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()

    @torch.no_grad()
    def evaluate(self, x, y):
        return (self.net(x) - y).pow(2).mean().item()


class Scoreboard:
    """Scores of all members of the last generation."""

    def __init__(self, world, close):
        self.values = [float("inf")] * world
        self.close = close

    def update(self, value):
        dist.all_gather_object(self.values, value)

    def owner(self, value, generation):
        ranking = sorted(range(len(self.values)), key=self.values.__getitem__)
        best, me = ranking[0], dist.get_rank()
        if generation >= 4 and me != best and value <= self.close * self.values[best]:
            ranking = [r for r in ranking[1:] if r != me]
        return ranking[0]


def share_best(member, owner):
    box = [member.net.state_dict() if dist.get_rank() == owner else None]
    dist.broadcast_object_list(box, src=owner)
    member.net.load_state_dict(box[0])
