import torch
import torch.distributed as dist
import torch.nn as nn

from membership import EpochGroups

EPOCHS = 4
STEPS = 5


class Population:
    def __init__(self, rank):
        torch.manual_seed(rank)
        self.model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.01 * (rank + 1))
        self.rank = rank

    def epoch(self, number):
        gen = torch.Generator().manual_seed(50 + number)
        loss = torch.zeros(1)
        for _ in range(STEPS):
            x = torch.randn(32, 6, generator=gen)
            loss = (self.model(x) - x.sum(-1, keepdim=True)).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return loss.item()


def summary(values, epoch, rank):
    best = torch.tensor([float(values.min())])
    dist.broadcast(best, src=0)
    if rank == 0:
        print(f"epoch {epoch} best {float(best):.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    agent = Population(rank)
    groups = EpochGroups(rank, world)
    for epoch in range(EPOCHS):
        loss = agent.epoch(epoch)
        values = groups.vote(loss, epoch)
        groups.renew()
        groups.share(agent.model)
        summary(values, epoch, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
