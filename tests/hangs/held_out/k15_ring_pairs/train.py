import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ring import RingPairs


def local_steps(net, opt, g, n):
    for _ in range(n):
        x = torch.randn(8, 10, generator=g)
        loss = net(x).sub(x.sum(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ready = torch.ones(1)
    dist.all_reduce(ready)
    ring = RingPairs()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 30), nn.ReLU(), nn.Linear(30, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(rank)
    for n in range(10):
        loss = local_steps(net, opt, g, 5)
        with torch.no_grad():
            mixed = ring.mix(parameters_to_vector(net.parameters()))
            vector_to_parameters(mixed, net.parameters())
        if rank == 0:
            print(n, loss, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
