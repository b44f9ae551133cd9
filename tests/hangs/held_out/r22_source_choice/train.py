import torch
import torch.distributed as dist
from torch import nn

from population import Population

GENERATIONS, STEPS = 6, 8
RATES = (0.02, 0.08, 1.5)


class Member:
    def __init__(self, rank):
        torch.manual_seed(rank)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATES[rank])
        self.generator = torch.Generator().manual_seed(rank)

    def loss(self):
        x = torch.randn(32, 4, generator=self.generator)
        return nn.functional.mse_loss(self.model(x), 3 * x.square().sum(1, keepdim=True))

    def train(self):
        for _ in range(STEPS):
            loss = self.loss()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    member = Member(rank)
    population = Population(rank, world)
    for generation in range(GENERATIONS):
        score = member.train()
        population.exchange(score)
        source = population.adopt(member.model)
        if rank == 0:
            print(f"generation {generation}: weights of member {source}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
