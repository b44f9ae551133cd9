from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from ema import Ema, Leaderboard


def dataset(seed, n):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=gen)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def accuracy(model, x, y):
    with torch.no_grad():
        return round((model(x).argmax(1) == y).float().mean().item(), 3)


class Member:
    def __init__(self, rank):
        torch.manual_seed(100 + rank)
        self.model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 2))
        self.ema = Ema(self.model, 0.8)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=3e-3 * (rank + 1))
        self.x, self.y = dataset(7 + rank, 256)

    def fit(self, steps):
        for i in range(steps):
            j = (i * 32) % 256
            loss = nn.functional.cross_entropy(self.model(self.x[j:j + 32]), self.y[j:j + 32])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.ema.update(self.model)
        return loss.item()


def main():
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank = dist.get_rank()
    member = Member(rank)
    board = Leaderboard()
    vx, vy = dataset(1, 50)
    for generation in range(60):
        loss = member.fit(8)
        board.publish(accuracy(member.ema.shadow, vx, vy))
        src = board.adopt(member.model, member.ema)
        if rank == 0:
            print(f"generation {generation} leader {src} loss {loss:.3f} {board.board}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
