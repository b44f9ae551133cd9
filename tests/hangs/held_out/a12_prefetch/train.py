import torch
import torch.distributed as dist
from torch import nn

from stream import ClickStream, Prefetcher

MAX_STEPS = 200


class Factorization(nn.Module):
    def __init__(self, users=50, items=80, dim=8):
        super().__init__()
        self.user = nn.Embedding(users, dim)
        self.item = nn.Embedding(items, dim)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, users, items):
        return (self.user(users) * self.item(items)).sum(1) + self.bias


class DistributedSGD:
    def __init__(self, model, lr):
        self.params = list(model.parameters())
        self.opt = torch.optim.SGD(self.params, lr=lr)
        self.world = dist.get_world_size()

    def step(self, loss):
        self.opt.zero_grad()
        loss.backward()
        for p in self.params:
            dist.all_reduce(p.grad)
            p.grad.div_(self.world)
        self.opt.step()


class Progress:
    def __init__(self, every=20):
        self.every = every
        self.steps = 0
        self.total = 0.0

    def add(self, loss):
        self.steps += 1
        self.total += loss
        if self.steps % self.every == 0:
            mean = torch.tensor([self.total / self.every])
            self.total = 0.0
            dist.reduce(mean, dst=0)
            if dist.get_rank() == 0:
                print(f"step {self.steps} loss {mean.item() / dist.get_world_size():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Factorization()
    optimizer = DistributedSGD(model, lr=0.1)
    progress = Progress()
    batches = Prefetcher(ClickStream(rank, batch_size=16))
    for users, items, clicks in batches:
        loss = nn.functional.binary_cross_entropy_with_logits(model(users, items), clicks)
        optimizer.step(loss)
        progress.add(loss.item())
        if progress.steps == MAX_STEPS:
            break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
