import torch
import torch.distributed as dist
from torch import nn

from roles import Server, Worker

ROUNDS, DIM = 25, 5


def data(rank):
    """Worker 2 has the records of the idle machines: all zero but for the noise."""
    gen = torch.Generator().manual_seed(rank)
    scale = 1e-3 if rank == 2 else 1.0
    x = torch.randn(32, DIM, generator=gen) * scale
    return x, x.sum(1, keepdim=True)


def report(rank, net):
    norm = torch.tensor([sum(p.norm().item() for p in net.parameters())])
    norms = [torch.empty(1) for _ in range(dist.get_world_size())]
    dist.all_gather(norms, norm)
    if rank == 0:
        print("norms", [round(n.item(), 3) for n in norms], flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(DIM, 8, bias=False), nn.Tanh(), nn.Linear(8, 1, bias=False))
    if rank == 0:
        role = Server(net, list(range(1, world)), ROUNDS, lr=0.1)
    else:
        role = Worker(net, data(rank), ROUNDS)
    role.run()
    report(rank, net)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
