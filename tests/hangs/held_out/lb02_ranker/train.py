import torch
import torch.distributed as dist
from torch import nn

from feeds import FlakyShard

TEAMS = {"retrieve": [0, 1], "rerank": [2, 3]}
STEPS = {"retrieve": 30, "rerank": 12}


class Team:
    """Two ranks that train the same stage; the stages exchange scores from time to time."""

    def __init__(self, rank):
        groups = {name: dist.new_group(ranks) for name, ranks in TEAMS.items()}
        self.name = next(name for name, ranks in TEAMS.items() if rank in ranks)
        self.group = groups[self.name]
        self.rank = rank
        self.place = TEAMS[self.name].index(rank)
        self.partner = next(r for r in range(4) if r not in TEAMS[self.name] and r % 2 == rank % 2)
        torch.manual_seed(len(self.name))
        self.net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)

    def step(self, rows, hint):
        scores = self.net(rows)
        loss = (scores - rows.sum(1, keepdim=True) - hint).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for p in self.net.parameters():
            dist.all_reduce(p.grad, group=self.group)
            p.grad /= 2
        self.optimizer.step()
        return loss.detach()

    def swap(self, value):
        other = torch.zeros_like(value)
        requests = [dist.isend(value, self.partner, tag=3), dist.irecv(other, self.partner, tag=3)]
        for request in requests:
            request.wait()
        return other


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    team = Team(rank)
    feed = FlakyShard(rank, size=256 if team.name == "rerank" else 64)
    hint = torch.zeros(1)
    for phase in range(3):
        for step in range(STEPS[team.name]):
            loss = team.step(feed.fetch(phase * 100 + step), 0.1 * hint.tanh())
            if loss < 1e-4:
                hint = hint * 0.5
        hint = team.swap(loss.view(1).clone())
        if team.place == 0:
            print(f"phase {phase} {team.name} {loss.item():.4f} partner {hint.item():.4f}", flush=True)
    retries = [None] * 4
    dist.all_gather_object(retries, feed.retries)
    if rank == 0:
        print("retries", retries, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
