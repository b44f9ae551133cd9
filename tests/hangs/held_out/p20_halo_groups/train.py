import torch
import torch.distributed as dist
import torch.nn as nn

from topology import Topology


class TileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.out = nn.Conv2d(4, 1, 1)

    def forward(self, tile):
        return self.out(torch.relu(self.conv(tile)))


class Simulation:
    def __init__(self, topology):
        self.topology = topology
        self.field = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(topology.rank))

    def advance(self):
        self.field = 0.9 * self.field + 0.1 * self.field.roll(1, 3)
        edge = self.field.mean(dim=(1, 2, 3)).clone()
        if self.topology.row is not None:
            dist.all_reduce(edge, group=self.topology.row)
        self.field[..., 0] += 0.01 * edge
        return self.field


def sync(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)


def write(topology, step, loss):
    if topology.writes:
        value = torch.tensor([loss])
        dist.all_reduce(value, group=topology.output)
        print(step, value.item(), flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    topology = Topology(dist.get_world_size()).build()
    model = TileNet()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    simulation = Simulation(topology)
    for step in range(10):
        before = simulation.field.clone()
        loss = nn.functional.mse_loss(model(before), simulation.advance())
        optimizer.zero_grad()
        loss.backward()
        sync(model)
        optimizer.step()
        write(topology, step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
