import torch
import torch.distributed as dist
import torch.nn as nn

from grid import Grid


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(50, 8)
        self.item = nn.Embedding(50, 8)

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(-1)


def sample(step, rank):
    g = torch.Generator().manual_seed(step * 4 + rank)
    n_items = 48 if step >= 9 and rank in (1, 2) else 12
    u = torch.arange(32) % 20
    i = torch.arange(32) % n_items
    return u, i, torch.randn(32, generator=g)


def touched(weight):
    return int((weight.grad.abs().sum(1) > 0).sum())


def sync(grid, model):
    """The tower with more rows goes first, so that the other one's copy overlaps."""
    users, items = touched(model.user.weight), touched(model.item.weight)
    plan = [("row", model.user), ("col", model.item)] if users >= items else [("col", model.item), ("row", model.user)]
    for name, tower in plan:
        grid.reduce(name, [p.grad for p in tower.parameters()])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    grid, model = Grid(), TwoTower()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        u, i, y = sample(step, grid.rank)
        loss = (model(u, i) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        sync(grid, model)
        opt.step()
        if grid.rank == 0:
            print(step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
