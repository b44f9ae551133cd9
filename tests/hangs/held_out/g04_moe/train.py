"""Experts with uneven, sometimes empty, splits."""
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out_splits, in_splits):
        ctx.splits = in_splits, out_splits
        out = x.new_empty(sum(out_splits), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), out_splits, in_splits)
        return out

    @staticmethod
    def backward(ctx, grad):
        out_splits, in_splits = ctx.splits
        out = grad.new_empty(sum(out_splits), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), out_splits, in_splits)
        return out, None, None


class MoE(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        torch.manual_seed(self.rank)
        self.expert = nn.Linear(dim, dim)

    def forward(self, x, target):
        order = target.argsort(stable=True)
        sent = torch.bincount(target, minlength=self.world)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        sent, received = sent.tolist(), received.tolist()
        tokens = AllToAll.apply(x[order], received, sent)
        done = torch.relu(self.expert(tokens))
        back = AllToAll.apply(done, sent, received)
        return x + torch.zeros_like(x).index_copy(0, order, back)


def route(rank, step, n, world):
    g = torch.Generator().manual_seed(rank * 50 + step)
    target = torch.randint(0, world, (n,), generator=g)
    if step % 4 == 2:
        target[target == 3] = 0  # nobody picks the last expert
    if step % 5 == 4 and rank == 1:
        target[:] = 2
    return target


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank, world = dist.get_rank(), dist.get_world_size()
    layer = MoE(6)
    for step in range(15):
        n = 10 + (rank * 7 + step) % 9
        x = torch.randn(n, 6, requires_grad=True)
        loss = layer(x, route(rank, step, n, world)).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for p in layer.expert.parameters():
                p -= 0.05 * p.grad
                p.grad = None
        total = loss.detach().clone()
        dist.reduce(total, dst=step % world)
        if rank == step % world:
            print(step, round(total.item() / world, 4), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
