import torch
import torch.distributed as dist


class ShardedAdam:
    """Each parameter has one owner, which keeps the state of Adam for it."""

    def __init__(self, model, lr=1e-2):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.named = list(model.named_parameters())
        self.owner = self._assign()
        mine = [p for n, p in self.named if self.owner[n] == self.rank]
        self.inner = torch.optim.Adam(mine, lr=lr)

    def _assign(self):
        load = [0] * self.world
        owner = {}
        for name, p in sorted(self.named, key=lambda item: -item[1].numel()):
            r = load.index(min(load))
            owner[name] = r
            load[r] += p.numel()
        return owner

    def zero_grad(self):
        for _, p in self.named:
            p.grad = None

    def reduce_gradients(self):
        for name, p in self.named:
            if p.grad is None:
                continue
            p.grad /= self.world
            dist.reduce(p.grad, dst=self.owner[name])

    def gather_parameters(self):
        for name, p in self.named:
            dist.broadcast(p.data, src=self.owner[name])

    def step(self):
        self.reduce_gradients()
        self.inner.step()
        self.gather_parameters()

    def load_of(self, rank):
        return sum(p.numel() for n, p in self.named if self.owner[n] == rank)
