import torch
import torch.distributed as dist
from torch import nn


class Groups:
    def __init__(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        self.own = None
        for start in range(0, world, 2):
            members = list(range(start, min(start + 2, world)))
            g = dist.new_group(members)
            if rank in members:
                self.own, self.size = g, len(members)


def all_finite(loss):
    ok = torch.tensor([int(torch.isfinite(loss))])
    dist.all_reduce(ok, op=dist.ReduceOp.MIN)
    return bool(ok)


def refine(groups, rank, net):
    rounds = 1 + rank // 2
    for _ in range(rounds):
        for p in net.parameters():
            t = p.detach().clone()
            dist.all_reduce(t, group=groups.own)
            with torch.no_grad():
                p.copy_(t / groups.size)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = Groups()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 5))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(rank)
    skipped = 0
    for step in range(60):
        x = torch.randn(8, 5, generator=g)
        if (step * 7 + rank) % 23 == 0:
            x[0, 0] = float("nan")
        loss = (net(x) - x).square().mean()
        if not all_finite(loss):
            skipped += 1
            continue
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        opt.step()
        if step % 6 == 5:
            refine(groups, rank, net)
        if rank == 0 and step % 10 == 0:
            note = [None] * dist.get_world_size()
            dist.gather_object({"rank": rank, "loss": loss.item()}, note, dst=0)
            print(step, skipped, flush=True)
        elif step % 10 == 0:
            dist.gather_object({"rank": rank, "loss": loss.item()}, dst=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
