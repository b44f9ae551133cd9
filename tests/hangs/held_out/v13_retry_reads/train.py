import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import Mixture


class SourceNet(nn.Module):
    def __init__(self, dim=6, sources=4):
        super().__init__()
        self.hidden = nn.Linear(dim, 24)
        self.out = nn.Linear(24, sources)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)))


class Trainer:
    def __init__(self, rank, refresh_every=5):
        self.rank = rank
        self.refresh_every = refresh_every
        self.mixture = Mixture(rank)
        self.model = DDP(SourceNet())
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def step(self, index):
        if index % self.refresh_every == 0:
            self.mixture.update(index // self.refresh_every)
        x, source = self.mixture.batch()
        loss = nn.functional.cross_entropy(self.model(x), source)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = dist.get_rank()
    trainer = Trainer(rank)
    for index in range(25):
        loss = trainer.step(index)
        if rank == 0 and index % 5 == 4:
            print(f"step {index} loss {loss:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
