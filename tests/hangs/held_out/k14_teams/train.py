import torch
import torch.distributed as dist
from torch import nn

from sources import Source
from teams import Teams


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 12))

    def forward(self, x):
        return self.net(x)


def flat_grad(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def apply_grad(model, flat):
    sizes = [p.numel() for p in model.parameters()]
    for p, piece in zip(model.parameters(), flat.split(sizes)):
        p.grad = piece.view_as(p).clone()


def report(rank, step, loss):
    losses = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, torch.tensor([loss]))
    if rank == 0:
        print(step, [round(v.item(), 3) for v in losses], flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    teams = Teams()
    torch.manual_seed(rank // 2)
    model = Encoder()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (kind, x) in enumerate(Source(rank)):
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        apply_grad(model, teams.share(kind, flat_grad(model)))
        opt.step()
        report(rank, step, loss.item())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
