import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from population import Population

RATES = [0.001, 0.3, 0.3]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


class Task:
    def __init__(self):
        generator = torch.Generator().manual_seed(4)
        self.x = torch.randn(200, 5, generator=generator)
        self.y = (self.x[:, 0] > self.x[:, 1]).long()
        self.generator = generator

    def batch(self, size=32):
        rows = torch.randint(0, 150, (size,), generator=self.generator)
        return self.x[rows], self.y[rows]

    def accuracy(self, model):
        with torch.no_grad():
            return (model(self.x[150:]).argmax(1) == self.y[150:]).float().mean().item()


def explore(model, task, rate, steps=25):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(steps):
        x, y = task.batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model, task = Net(), Task()
    population = Population(model)
    for round in range(4):
        loss = explore(model, task, RATES[rank % len(RATES)])
        accuracy = task.accuracy(model)
        best = population.exploit(accuracy)
        print(f"rank {rank} round {round}: loss {loss:.3f} accuracy {accuracy:.2f}, best was {best}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
