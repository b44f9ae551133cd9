import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from logger import MetricLogger
from utils import Meter


class Classifier(nn.Module):
    def __init__(self, features=20, classes=3):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, 16), nn.GELU(), nn.Linear(16, classes))

    def forward(self, x):
        return self.net(x)


def batch(generator):
    x = torch.randn(32, 20, generator=generator)
    return x, x[:, :3].argmax(1)


def fit(model, rank, steps=30, log_every=10):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    logger = MetricLogger()
    meters = {"loss": Meter(), "accuracy": Meter()}
    for step in range(1, steps + 1):
        x, y = batch(generator)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meters["loss"].add(loss.item(), len(y))
        meters["accuracy"].add((logits.argmax(1) == y).float().mean().item(), len(y))
        if step % log_every == 0:
            logger.write(step, meters)
    return logger.lines


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    lines = fit(DDP(Classifier()), dist.get_rank())
    dist.barrier()
    if dist.get_rank() == 0:
        print(lines, "lines of metrics")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
