import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from metrics import MetricsWriter


class Denoiser(nn.Module):
    def __init__(self, dim=14):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 28), nn.Tanh(), nn.Linear(28, dim))

    def forward(self, x):
        return x - self.net(x)


def noisy(step, rank):
    g = torch.Generator().manual_seed(step * 13 + rank)
    clean = torch.randn(8, 14, generator=g).sign()
    noise = torch.randn(8, 14, generator=g) * (0.2 + 0.4 * (rank == 2))
    return clean + noise, clean


class Loop:
    def __init__(self, net, writer):
        self.net = net
        self.writer = writer
        self.optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def outliers(self, x):
        for row in (x.abs().max(1).values > 2.5).nonzero().flatten().tolist():
            self.writer.add("outlier", row)

    def step(self, number):
        x, clean = noisy(number, dist.get_rank())
        self.outliers(x)
        loss = nn.functional.mse_loss(self.net(x), clean)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.writer.add("loss", loss.item())

    def run(self, epochs, steps):
        for epoch in range(epochs):
            for number in range(steps):
                self.step(epoch * steps + number)
            self.writer.flush()
            total = torch.tensor([float(epoch)])
            dist.all_reduce(total)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    with tempfile.TemporaryFile("w") as stream:
        writer = MetricsWriter(stream)
        Loop(DDP(Denoiser()), writer).run(epochs=3, steps=50)
        writer.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
