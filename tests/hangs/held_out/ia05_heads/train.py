import torch
import torch.distributed as dist
from torch import nn

from topology import Topology


class Hierarchical:
    """Reduce inside a node, then across the heads, then hand back."""

    def __init__(self, model, topo):
        self.model = model
        self.topo = topo

    def sync_weights(self):
        for p in self.model.parameters():
            dist.broadcast(p.data, 0)

    def exchange(self, flat):
        if flat.any():
            dist.all_reduce(flat, group=self.topo.across)

    def average(self):
        topo = self.topo
        grads = [p.grad for p in self.model.parameters()]
        flat = torch.cat([g.flatten() for g in grads])
        dist.reduce(flat, topo.head, group=topo.local)
        if topo.is_head:
            self.exchange(flat)
        dist.broadcast(flat, topo.head, group=topo.local)
        for g, part in zip(grads, flat.split([g.numel() for g in grads])):
            g.copy_(part.view_as(g) / topo.world)


class Sensors:
    """Readings of one node, some of which are not valid."""

    def __init__(self, topo):
        self.topo = topo

    def batch(self, step):
        gen = torch.Generator().manual_seed(step * 31 + self.topo.rank)
        x = torch.randn(16, 6, generator=gen)
        valid = torch.rand(16, 1, generator=gen) > 0.3
        if self.topo.node == 1 and step == 4:
            valid &= False
        return x, (x.sum(1, keepdim=True) > 0).float(), valid.float()


def build():
    torch.manual_seed(dist.get_rank())
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))


def report(step, loss):
    out = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(out, loss.detach())
    if dist.get_rank() == 0:
        print(step, [round(o.item(), 3) for o in out], flush=True)


def main():
    dist.init_process_group("gloo")
    topo = Topology()
    model = build()
    sync = Hierarchical(model, topo)
    sync.sync_weights()
    sensors = Sensors(topo)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        x, y, valid = sensors.batch(step)
        each = nn.functional.binary_cross_entropy_with_logits(model(x), y, reduction="none")
        loss = (each * valid).sum() / valid.sum().clamp(min=1)
        opt.zero_grad()
        loss.backward()
        sync.average()
        opt.step()
        report(step, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
