"""Two-class training with metrics each few steps."""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from metrics import Metrics


class Stream:
    def __init__(self, rank):
        self.rank = rank
        self.gen = torch.Generator().manual_seed(40 + rank)

    def next(self, step):
        x = torch.randn(16, 5, generator=self.gen)
        y = (x[:, 0] + x[:, 1] > 0).long()
        if self.rank == 0 and step == 12:
            x[3] *= 1e4
        return x, y


def train_step(model, optimizer, x, y, step, metrics):
    norms = x.norm(dim=1)
    if norms.max() > 1e3:
        metrics.note("outliers", (step, int(norms.argmax())))
        x = x / norms.clamp(min=1).unsqueeze(1)
    out = model(x)
    loss = nn.functional.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    metrics.add("loss", loss.detach())
    metrics.add("accuracy", (out.argmax(1) == y).float().mean())


def finish_window(metrics, step):
    if "outliers" not in metrics.values:
        metrics.values["outliers"] = []
    summary = metrics.reduce()
    if dist.get_rank() == 0:
        print(step, summary, flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stream, metrics = Stream(rank), Metrics()
    for step in range(24):
        x, y = stream.next(step)
        train_step(model, optimizer, x, y, step, metrics)
        if step % 4 == 3:
            finish_window(metrics, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
