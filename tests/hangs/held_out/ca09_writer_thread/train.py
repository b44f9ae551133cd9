import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from writer import MetricWriter


class Mixer(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.inp = nn.Linear(5, width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        return self.out(h + torch.relu(self.mid(h)))


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(8, 5, generator=generator)
    if rank == 1 and step == 6:
        x[3] *= 80
    return x, x.sum(dim=1, keepdim=True)


def train(model, writer, rank, steps=40):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        x, y = batch(step, rank)
        error = (model(x) - y).abs()
        outliers = (error > 40).sum().item()
        loss = error.clamp(max=40).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics = {"step": step, "loss": loss.item()}
        if outliers:
            metrics["outliers"] = outliers
        writer.write(**metrics)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Mixer())
    with tempfile.TemporaryDirectory() as folder:
        writer = MetricWriter(folder, rank, ["step", "loss"])
        train(model, writer, rank)
        writer.close()
        dist.barrier()
    if rank == 0:
        print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
