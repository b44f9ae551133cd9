import torch
import torch.distributed as dist

from cg import solve
from operator_ import RowBlockOperator

N = 48
TIMES = 8


class ImplicitStepper:
    """Backward Euler of a driven system: a linear system in each time step."""

    def __init__(self, op, rank):
        self.op, self.rank = op, rank
        self.x = torch.zeros(op.per, dtype=torch.float64)
        self.history = []

    def source(self, t):
        gen = torch.Generator().manual_seed(1000 * self.rank + t)
        return torch.randn(self.op.per, generator=gen, dtype=torch.float64)

    def right_side(self, t):
        if t == 4:
            # the source of block 1 is switched off in this interval
            b = self.op.apply(self.x)
            if self.rank != 1:
                b = b + self.source(t)
            return b
        return self.source(t)

    def step(self, t):
        result = solve(self.op, self.right_side(t), x0=self.x)
        self.x = result.x
        self.history.append((t, result.iterations, result.reason))
        return result


def norm_report(stepper, t, rank):
    peak = stepper.x.abs().max().reshape(1)
    dist.reduce(peak, dst=0, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(f"t={t} peak {float(peak):.4f} iterations {stepper.history[-1][1]}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    op = RowBlockOperator(rank, world, N)
    stepper = ImplicitStepper(op, rank)
    for t in range(TIMES):
        stepper.step(t)
        norm_report(stepper, t, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
