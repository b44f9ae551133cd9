import torch
import torch.distributed as dist
import torch.nn as nn

from data import EchoLoader

UPDATES = 16


class WarmRestarts:
    def __init__(self, optimizer, period, high=0.1, low=0.001):
        self.optimizer, self.period, self.high, self.low = optimizer, period, high, low
        self.count = 0

    def step(self):
        at = (self.count % self.period) / self.period
        lr = self.low + (self.high - self.low) * (1 - at)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.count += 1


class Worker:
    def __init__(self, rank):
        self.rank, self.world = rank, dist.get_world_size()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.schedule = WarmRestarts(self.optimizer, period=UPDATES)

    def reduce(self):
        params = list(self.model.parameters())
        flat = torch.cat([p.grad.flatten() for p in params])
        dist.all_reduce(flat)
        for p, g in zip(params, flat.div_(self.world).split([p.numel() for p in params])):
            p.grad.copy_(g.view_as(p))

    def update(self, x, y):
        loss = (self.model(x) - y).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.reduce()
        self.schedule.step()
        self.optimizer.step()
        return loss.item()

    def epoch(self):
        losses = []
        for x, y in EchoLoader(self.rank, UPDATES):
            losses.append(self.update(x, y))
        return self.summary(losses)

    def summary(self, losses):
        mine = torch.tensor([sum(losses), float(len(losses))])
        everyone = [torch.zeros(2) for _ in range(self.world)]
        dist.all_gather(everyone, mine)
        total, count = torch.stack(everyone).sum(0).tolist()
        return total / count


def main():
    dist.init_process_group("gloo")
    worker = Worker(dist.get_rank())
    for epoch in range(3):
        loss = worker.epoch()
        if worker.rank == 0:
            print(f"epoch {epoch} loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
