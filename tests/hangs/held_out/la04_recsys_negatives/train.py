import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from negatives import SharedNegatives
from sessions import Sessions

ITEMS, USERS = 1200, 960


class TwoTower(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.user = nn.Embedding(USERS, dim)
        self.item = nn.Embedding(ITEMS, dim)
        self.temperature = nn.Parameter(torch.tensor(5.0))

    def forward(self, users, targets, negatives):
        u = F.normalize(self.user(users), dim=1)
        candidates = torch.cat([targets, negatives])
        v = F.normalize(self.item(candidates), dim=1)
        return self.temperature * u @ v.T


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(TwoTower())
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    negatives = SharedNegatives(ITEMS, seed=rank)
    sessions = Sessions(ITEMS, USERS)
    for epoch in range(3):
        for step, (users, targets, positives) in enumerate(sessions.batches(rank, world, 16)):
            sampled = negatives.fill(positives, count=36)
            scores = model(users, targets, sampled)
            loss = F.cross_entropy(scores, torch.arange(len(users)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 5 == 0 and rank == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
