import torch
import torch.distributed as dist


class ShardedAdam:
    """Each parameter has one owner, which keeps its moments and updates it for all ranks."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.95)):
        self.params = list(params)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.lr, self.betas, self.t = lr, betas, 0
        self.owner = self.assign()
        self.state = {i: (torch.zeros_like(p), torch.zeros_like(p))
                      for i, p in enumerate(self.params) if self.owner[i] == self.rank}

    def assign(self):
        load = [0] * self.world
        owner = []
        for p in self.params:
            o = load.index(min(load))
            load[o] += p.numel()
            owner.append(o)
        return owner

    def reduce_gradients(self):
        handles = []
        for p in self.params:
            if p.grad is None:
                continue
            handles.append((p, dist.all_reduce(p.grad, async_op=True)))
        for p, work in handles:
            work.wait()
            p.grad /= self.world

    @torch.no_grad()
    def update(self, i):
        p, (m, v) = self.params[i], self.state[i]
        if p.grad is None:
            return
        m.lerp_(p.grad, 1 - self.betas[0])
        v.lerp_(p.grad ** 2, 1 - self.betas[1])
        p -= self.lr * m / (v.sqrt() + 1e-8)

    def step(self):
        self.t += 1
        self.reduce_gradients()
        works = []
        for i, p in enumerate(self.params):
            if self.owner[i] == self.rank:
                self.update(i)
            works.append(dist.broadcast(p.data, src=self.owner[i], async_op=True))
        for work in works:
            work.wait()

    def zero_grad(self):
        for p in self.params:
            p.grad = None
