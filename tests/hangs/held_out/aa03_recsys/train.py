import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from logs import ClickLog
from tables import Collection, Replicated


class Ranker(nn.Module):
    def __init__(self, vocabulary, dim=8):
        super().__init__()
        self.embeddings = Collection(vocabulary, dim)
        self.mlp = nn.Sequential(nn.Linear(3 * dim, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, ids):
        return self.mlp(self.embeddings(ids)).squeeze(1)

    def dense_parameters(self):
        return list(self.mlp.parameters())


def sync_dense(params):
    flat = torch.cat([p.grad.flatten() for p in params])
    world = dist.get_world_size()
    parts = [torch.empty_like(flat) for _ in range(world)]
    dist.all_gather(parts, flat)
    mean = torch.stack(parts).mean(0)
    for p, g in zip(params, mean.split([p.numel() for p in params])):
        p.grad.copy_(g.view_as(p))


def evaluate(model, log):
    with torch.no_grad():
        ids, clicks = next(log.batches(500))
        return ((model(ids) > 0).float() == clicks).float().mean().item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    log = ClickLog(rank)
    torch.manual_seed(0)
    model = Ranker(log.vocabulary())
    small = sum(isinstance(t, Replicated) for t in model.embeddings.tables.values())
    print(f"[{rank}] {small} replicated tables", flush=True)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for step, (ids, clicks) in enumerate(log.batches(200)):
        loss = F.binary_cross_entropy_with_logits(model(ids), clicks)
        optimizer.zero_grad()
        loss.backward()
        sync_dense(model.dense_parameters())
        optimizer.step()
        if step % 5 == 0 and rank == 0:
            print("step", step, round(loss.item(), 4), flush=True)
    print(rank, evaluate(model, log))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
