import torch
import torch.distributed as dist
from torch import nn

from data import loader


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.lin = nn.Linear(dim, dim)

    def forward(self, x):
        return x + torch.tanh(self.lin(self.norm(x)))


class Runner:
    def __init__(self):
        torch.manual_seed(0)
        self.rank = dist.get_rank()
        self.net = nn.Sequential(Block(6), Block(6), nn.Linear(6, 1))
        self.fast = torch.compile(self.net, backend="eager", dynamic=False)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.02)
        self.skipped = 0

    def warm_up(self):
        self.fast(torch.zeros(8, 6)).sum().backward()
        self.opt.zero_grad()
        torch.compiler.set_stance("fail_on_recompile")

    def reduce(self):
        flat = torch.cat([p.grad.flatten() for p in self.net.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        sizes = [p.numel() for p in self.net.parameters()]
        for p, part in zip(self.net.parameters(), flat.split(sizes)):
            p.grad.copy_(part.view_as(p))

    def step(self, x, y):
        loss = (self.fast(x) - y).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.reduce()
        self.opt.step()
        return loss.item()

    def epoch(self, batches):
        losses = []
        for x, y in batches:
            try:
                losses.append(self.step(x, y))
            except RuntimeError as error:
                self.skipped += 1
                print(f"rank {self.rank}: batch skipped: {str(error).splitlines()[0]}", flush=True)
        return sum(losses) / len(losses)

    def summary(self, mean):
        out = [None] * dist.get_world_size()
        dist.all_gather_object(out, {"loss": mean, "skipped": self.skipped})
        return out


def main():
    dist.init_process_group("gloo")
    runner = Runner()
    runner.warm_up()
    for epoch in range(3):
        mean = runner.epoch(loader(runner.rank))
        rows = runner.summary(mean)
        if runner.rank == 0:
            print(epoch, rows, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
