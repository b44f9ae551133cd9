import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from data import loader
from robust import attempt


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(20, 16)
        self.score = nn.Linear(16, 1)

    def forward(self, x):
        return self.score(self.encode(x).relu()).squeeze(1)


def train_epoch(model, optimizer, rank):
    for x, y in loader(rank, "train"):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model, rank):
    model.eval()
    hits = torch.zeros(2)
    for x, y in loader(rank, "valid"):
        hits[0] += ((model.module(x) > 0) == y).sum()
        hits[1] += len(y)
    dist.reduce(hits, dst=0)
    model.train()
    return (hits[0] / hits[1]).item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Detector())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        train_epoch(model, optimizer, rank)
        accuracy = attempt(evaluate, model, rank, default=0.0)
        scores = [None] * dist.get_world_size()
        dist.all_gather_object(scores, accuracy)
        if rank == 0:
            print(f"epoch {epoch}: accuracy {scores[0]:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
