import torch
import torch.distributed as dist
import torch.nn as nn

from folds import FoldTeam, KFold


def make_data(n=120, dim=6):
    g = torch.Generator().manual_seed(5)
    x = torch.randn(n, dim, generator=g)
    return x, x @ torch.randn(dim, 1, generator=g)


def fit(model, x, y, team, steps=15):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    share = len(x) // len(team.trainers)
    at = team.trainers.index(team.rank) * share
    x, y = x[at:at + share], y[at:at + share]
    for _ in range(steps):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=team.group)
            p.grad /= len(team.trainers)
        optimizer.step()


def run_fold(fold, folds, x, y):
    team = FoldTeam(fold)
    train, held = folds.split(fold)
    torch.manual_seed(fold)
    model = nn.Linear(x.shape[1], 1)
    if team.trains:
        fit(model, x[train], y[train], team)
    for p in model.parameters():
        dist.broadcast(p.data, src=team.leader)
    score = torch.zeros(1)
    if not team.trains:
        with torch.no_grad():
            score[0] = (model(x[held]) - y[held]).square().mean()
    dist.broadcast(score, src=team.validator)
    return score.item()


def main():
    dist.init_process_group("gloo")
    x, y = make_data()
    folds = KFold(len(x), k=3)
    scores = [run_fold(fold, folds, x, y) for fold in range(folds.k)]
    if dist.get_rank() == 0:
        print("mse", sum(scores) / len(scores))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
