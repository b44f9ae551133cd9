import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from reporting import Reporter


def make_model():
    torch.manual_seed(0)
    return DDP(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)))


def target(x):
    return x.prod(dim=1, keepdim=True)


def train_epoch(model, optimizer, generator, steps=6):
    for _ in range(steps):
        x = torch.randn(16, 4, generator=generator)
        loss = (model(x) - target(x)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def residuals(model, count):
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(99))
    return (model.module(x) - target(x)).squeeze(1)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    with tempfile.TemporaryDirectory() as folder:
        reporter = Reporter(folder)
        for epoch in range(4):
            train_epoch(model, optimizer, generator)
            score = torch.zeros(1)
            if rank == 0:
                # the last epochs are looked at more closely
                score[0] = reporter.run(residuals(model, 200 if epoch < 2 else 5000))
            dist.broadcast(score, src=0)
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * min(1.0, score.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
