"""Non-finite losses: all ranks skip the step if one has to."""
import math
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class SumGrad(torch.autograd.Function):
    """Identity whose gradient is summed over ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(5, 9)
        self.b = nn.Linear(9, 1)

    def forward(self, x):
        return self.b(torch.relu(SumGrad.apply(self.a(x))))


def batch(rank, step):
    g = torch.Generator().manual_seed(rank * 40 + step)
    x = torch.randn(10, 5, generator=g)
    if (rank, step) in {(1, 3), (0, 7), (1, 8)}:
        x[2, 2] = math.inf
    return x, x.sum(1, keepdim=True)


def all_finite(loss):
    ok = torch.isfinite(loss.detach()).float()
    dist.all_reduce(ok, op=dist.ReduceOp.MIN)
    return ok.item() > 0


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    skipped = []
    for step in range(16):
        x, y = batch(rank, step)
        loss = nn.functional.mse_loss(net(x), y)
        if not all_finite(loss):
            skipped.append(step)
            continue
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.01 * p.grad
    dist.barrier()
    print(f"[{rank}] skipped {skipped}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
