"""Compiled blocks (aot_eager) with batch statistics over all ranks."""
import torch
import torch.distributed as dist
from torch import nn

from norm import SharedNorm


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(6, 20)
        self.norm = SharedNorm(20)
        self.out = nn.Linear(20, 2)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.inp(x))))


def average_grads(params):
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def sizes(rank, steps):
    g = torch.Generator().manual_seed(90 + rank)
    out = torch.randint(9, 14, (steps,), generator=g).tolist()
    if rank == 1:
        out[11] = 4
    return out


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    forward = torch.compile(net, backend="eager", dynamic=True)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(rank)
    for step, n in enumerate(sizes(rank, 24)):
        x = torch.randn(n, 6, generator=g)
        loss = nn.functional.cross_entropy(forward(x), (x.sum(1) > 0).long())
        opt.zero_grad()
        loss.backward()
        average_grads(net.parameters())
        opt.step()
        if rank == 0 and step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
