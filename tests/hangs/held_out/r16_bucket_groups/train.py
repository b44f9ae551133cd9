import torch
import torch.distributed as dist
from torch import nn

from groups import ReductionPlan

VOCAB, DIM, REPLAN = 400, 8, 6


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(VOCAB, DIM)
        self.tower = nn.Sequential(nn.Linear(DIM, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, items):
        return self.tower(self.items(items).mean(1))

    def gradients(self):
        return {"embedding": [self.items.weight.grad],
                "dense": [p.grad for p in self.tower.parameters()]}


def sessions(rank, step):
    generator = torch.Generator().manual_seed(31 * step + rank)
    variety = 300 if rank == 1 else 40     # rank 1 has the customers of the large shop
    items = torch.randint(0, variety, (32, 10), generator=generator)
    return items, (items.float().mean(1, keepdim=True) > variety / 2).float()


def touched_rows(items):
    return len(items.unique())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Recommender()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = ReductionPlan()
    dense_size = sum(p.numel() for p in model.tower.parameters())
    for step in range(1, 21):
        items, clicked = sessions(rank, step)
        loss = nn.functional.binary_cross_entropy_with_logits(model(items), clicked)
        optimizer.zero_grad()
        loss.backward()
        plan.measure("dense", dense_size, 0)
        plan.measure("embedding", model.items.weight.numel(), touched_rows(items))
        if step % REPLAN == 0:
            plan.replan()
        plan.reduce(model.gradients())
        optimizer.step()
        if rank == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
