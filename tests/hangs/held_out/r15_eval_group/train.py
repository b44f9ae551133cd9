import torch
import torch.distributed as dist
from torch import nn

from topology import Topology

ROUNDS, STEPS = 4, 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(7, 14)
        self.b = nn.Linear(14, 2)

    def forward(self, x):
        return self.b(self.a(x).sigmoid())


def sample(seed):
    x = torch.randn(16, 7, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > x[:, 1]).long()


def train_round(net, optimizer, topology, index):
    for step in range(STEPS):
        x, y = sample(1000 * topology.rank + STEPS * index + step)
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad, group=topology.train_group)
            p.grad /= len(topology.trainers)
        optimizer.step()


def share_weights(net, group):
    for p in net.parameters():
        dist.broadcast(p.data, src=0, group=group)


def evaluate(net, index):
    x, y = sample(77)
    with torch.no_grad():
        correct = (net(x).argmax(1) == y).float().mean().item()
    print(f"round {index}: accuracy {correct:.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    topology = Topology().create_groups()
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    for index in range(ROUNDS):
        if topology.is_trainer:
            train_round(net, optimizer, topology, index)
        share_weights(net, topology.sync_group)
        if topology.rank == topology.evaluator:
            evaluate(net, index)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
