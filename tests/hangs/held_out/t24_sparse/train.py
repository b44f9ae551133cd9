import torch
import torch.distributed as dist
from torch import nn

from layers import SharedEmbedding


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = SharedEmbedding(30, 8)
        self.score = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, ids, weights):
        return self.score(self.items(ids, weights)).squeeze(1)


def sessions(rank, n):
    """Items of a session with the time spent on each; bots spend none."""
    g = torch.Generator().manual_seed(rank)
    for i in range(n):
        ids = torch.randint(0, 30, (6, 5), generator=g)
        weights = torch.rand(6, 5, generator=g)
        clicked = (ids.float().mean(1) > 15).float()
        if rank == 1 and i == 9:
            weights.zero_()
        yield ids, weights, clicked


def sync_dense(module):
    flat = torch.cat([p.grad.flatten() for p in module.parameters()])
    parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, flat)
    mean = torch.stack(parts).mean(0)
    for p, g in zip(module.parameters(), mean.split([p.numel() for p in module.parameters()])):
        p.grad.copy_(g.view_as(p))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Ranker()
    opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
    for step, (ids, weights, clicked) in enumerate(sessions(dist.get_rank(), 30)):
        loss = nn.functional.binary_cross_entropy_with_logits(net(ids, weights), clicked)
        opt.zero_grad()
        loss.backward()
        total = loss.detach().clone()
        dist.broadcast(total, src=0)
        sync_dense(net.score)
        opt.step()
        if dist.get_rank() == 0:
            print(step, total.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
