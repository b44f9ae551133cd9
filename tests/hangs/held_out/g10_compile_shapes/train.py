"""Compiled model; ranks see different shapes, hence recompile at different steps."""
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

LENGTHS = {0: [8, 8, 8, 16, 16, 8, 8, 8], 1: [8, 24, 8, 8, 8, 8, 12, 8]}


def counting(gm, inputs):
    counting.graphs += 1
    return gm.forward


counting.graphs = 0


class Encoder(nn.Module):
    def __init__(self, dim=12):
        super().__init__()
        self.emb = nn.Embedding(40, dim)
        self.mix = nn.Linear(dim, dim)

    def forward(self, t):
        h = self.emb(t)
        if t.shape[1] > 10:
            h = h[:, ::2]
        return self.mix(h.mean(1))


def grads_of(model, fn, t):
    z = fn(t)
    loss = (z @ z.t() - torch.eye(len(t))).pow(2).mean()
    model.zero_grad()
    loss.backward()
    return loss


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Encoder()
    fn = torch.compile(model, backend=counting)
    for step, length in enumerate(LENGTHS[rank]):
        t = torch.randint(0, 40, (6, length), generator=torch.Generator().manual_seed(step))
        loss = grads_of(model, fn, t)
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.data.sub_(p.grad, alpha=0.05)
        if rank == 0:
            print(step, round(loss.item(), 4), flush=True)
    seen = [None] * dist.get_world_size()
    dist.all_gather_object(seen, counting.graphs)
    if rank == 0:
        print("graphs", seen, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
