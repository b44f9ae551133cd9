import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from export import Exporter


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, dim=16, depth=2):
        super().__init__()
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.head = nn.Linear(dim, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def shard(model, mesh):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def sample(step, rank):
    g = torch.Generator().manual_seed(step * 7 + rank)
    x = torch.randn(8, 16, generator=g)
    return x, x[:, :4].argmax(1)


def train(model, exporter, steps=12):
    rank = dist.get_rank()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        x, y = sample(step, rank)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if exporter.due(step):
            path = exporter.write(step, model)
            dist.barrier()
            if path:
                print("exported step", step, flush=True)


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = shard(Stack(), mesh)
    with tempfile.TemporaryDirectory() as folder:
        train(model, Exporter(folder, every=4))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
