"""Ring of activations with isend/irecv, even and odd groups, and a last rank which does more."""
import torch
import torch.distributed as dist
from torch import nn


class Ring:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        evens = dist.new_group([r for r in range(self.world) if r % 2 == 0])
        odds = dist.new_group([r for r in range(self.world) if r % 2])
        self.parity = odds if self.rank % 2 else evens

    def rotate(self, x):
        out = torch.empty_like(x)
        ops = [dist.P2POp(dist.isend, x, (self.rank + 1) % self.world),
               dist.P2POp(dist.irecv, out, (self.rank - 1) % self.world)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return out


def extra(ring, step):
    """Only even ranks have a second head."""
    if ring.rank % 2 == 0 and step % 3 == 0:
        t = torch.ones(2)
        dist.all_reduce(t, group=ring.parity)
        dist.all_reduce(t, group=ring.parity)
        return t.sum().item()
    return 0.0


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    ring = Ring()
    net = nn.Linear(5, 5)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(12):
        h = torch.randn(4, 5)
        for _ in range(ring.world - 1):
            h = ring.rotate(h)
        loss = net(h).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        extra(ring, step)
        total = loss.detach().clone()
        dist.reduce(total, dst=ring.world - 1)
        if ring.rank == ring.world - 1:
            print(step, total.item() / ring.world, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
