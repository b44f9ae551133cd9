"""Tensor-parallel MLP on DTensor with activation statistics for outlier clipping."""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from outliers import OutlierClip


class MLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)
        self.clip = OutlierClip(limit=6.0)

    def forward(self, x):
        h = torch.relu(self.up(x))
        return self.down(self.clip(h))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = MLP(16, 16 * world)
    parallelize_module(model, mesh, {
        "up": ColwiseParallel(use_local_output=False),
        "down": RowwiseParallel(),
    })
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    g = torch.Generator().manual_seed(9)
    for step in range(20):
        x = torch.randn(8, 16, generator=g) * (1 + 0.28 * step)
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
