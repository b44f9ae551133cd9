import torch
import torch.distributed as dist
from torch import nn

from scaling import MixedOptimizer


class HalfRange(torch.autograd.Function):
    """Identity, whose gradient has the range of float16."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.half().float()


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.second = nn.Linear(12, 1)

    def forward(self, x):
        hidden = torch.relu(HalfRange.apply(self.first(x)))
        return HalfRange.apply(self.second(hidden)).squeeze(1)


def make_batch(step, rank):
    generator = torch.Generator().manual_seed(50 * step + rank)
    x = torch.randn(10, 6, generator=generator)
    y = x.sum(dim=1)
    if (step, rank) == (9, 1):
        y[4] = -4.0e4
    return x, y


def mean_over_ranks(value):
    parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.tensor([value]))
    return torch.cat(parts).mean().item()


def train(model, optimizer, rank, steps=25):
    for step in range(steps):
        x, y = make_batch(step, rank)
        loss = (model(x) - y).pow(2).mean()
        optimizer.backward(loss)
        norm = optimizer.step()
        mean = mean_over_ranks(loss.item())
        if rank == 0 and step % 5 == 0:
            print(f"step {step}: loss {mean:.4f}, norm {norm}", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Mlp()
    optimizer = MixedOptimizer(model.parameters(), lr=0.01)
    train(model, optimizer, dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
