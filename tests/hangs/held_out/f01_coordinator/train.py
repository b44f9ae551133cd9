import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ROUNDS = 12


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 6))


class Server:
    def __init__(self, workers):
        self.net, self.workers = model(), workers

    def round(self):
        weights = parameters_to_vector(self.net.parameters()).detach()
        for w in self.workers:
            dist.send(weights, w)
        total = torch.zeros_like(weights)
        for _ in self.workers:
            got = torch.empty_like(weights)
            dist.recv(got)
            total += got
        vector_to_parameters(total / len(self.workers), self.net.parameters())


class Worker:
    def __init__(self, rank):
        self.net, self.rank = model(), rank
        self.g = torch.Generator().manual_seed(rank)

    def round(self):
        weights = parameters_to_vector(self.net.parameters()).detach()
        dist.recv(weights, 0)
        vector_to_parameters(weights, self.net.parameters())
        opt = torch.optim.SGD(self.net.parameters(), lr=0.05)
        for _ in range(3 * self.rank):
            x = torch.randn(16, 6, generator=self.g)
            loss = (self.net(x) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        dist.send(parameters_to_vector(self.net.parameters()).detach(), 0)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    crew = dist.new_group(list(range(1, world)))
    role = Server(list(range(1, world))) if rank == 0 else Worker(rank)
    for n in range(ROUNDS):
        role.round()
        if rank > 0 and n % 4 == 3:
            t = torch.ones(1)
            dist.all_reduce(t, group=crew)
        if rank == 0:
            print("round", n, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
