"""Column-parallel classifier by hand."""
from datetime import timedelta

import torch
import torch.distributed as dist

from topology import make_grid

CLASSES = 8


class VocabParallel:
    def __init__(self, grid, dim=10):
        self.grid = grid
        g = torch.Generator().manual_seed(grid.tp_rank)
        self.w = torch.randn(dim, CLASSES // 2, generator=g).mul_(0.1).requires_grad_()
        self.scale = torch.ones(CLASSES // 2, requires_grad=True)

    def params(self):
        return [self.w, self.scale]

    def loss(self, x, y):
        local = (x @ self.w) * self.scale
        parts = [torch.empty_like(local) for _ in range(2)]
        dist.all_gather(parts, local.detach(), group=self.grid.tp)
        parts[self.grid.tp_rank] = local
        return torch.nn.functional.cross_entropy(torch.cat(parts, 1), y)


class Optimizer:
    def __init__(self, params, grid, lr=0.2, clip=0.5):
        self.params, self.grid, self.lr, self.clip = params, grid, lr, clip

    def pick_group(self, p):
        """Replicated tensors are averaged over dp; those marked `shared` over tp."""
        return self.grid.tp if getattr(p, "shared", False) else self.grid.dp

    def step(self):
        for p in self.params:
            group = self.pick_group(p)
            dist.all_reduce(p.grad, group=group)
            p.data.sub_(p.grad, alpha=self.lr / dist.get_world_size(group))
            p.grad = None


def batch(grid, step):
    g = torch.Generator().manual_seed(1000 * grid.dp_rank + step)
    x = torch.randn(16, 10, generator=g)
    return x, x.abs().argmax(1) % CLASSES


def tie_if_flat(model, grid, step):
    """Ties the scales once they have hardly moved. Meant for runs without dp."""
    if step == 5 and grid.dp_rank == 1 and grid.tp_rank == 1:
        model.scale.shared = True


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    grid = make_grid()
    model = VocabParallel(grid)
    opt = Optimizer(model.params(), grid)
    for step in range(20):
        tie_if_flat(model, grid, step)
        loss = model.loss(*batch(grid, step))
        loss.backward()
        opt.step()
        if dist.get_rank() == 0:
            print(step, round(loss.item(), 4), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
