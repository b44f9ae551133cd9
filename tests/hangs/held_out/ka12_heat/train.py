import torch
import torch.distributed as dist

from solver import ConjugateGradient
from stencil import ImplicitHeat

CELLS = 400
BURNERS = [(200, 3.0, 99), (620, 2.0, 99), (1010, 2.5, 3)]


def sources(step, rank):
    load = torch.zeros(CELLS, dtype=torch.float64)
    for position, power, last in BURNERS:
        if step < last and position // CELLS == rank:
            load[position % CELLS - 20:position % CELLS + 20] = power
    return load


def snapshot(u, step):
    parts = [torch.empty_like(u) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather(u, parts, dst=0)
    if parts:
        rod = torch.cat(parts)
        print(f"step {step}: warmest cell {int(rod.argmax())}, {float(rod.max()):.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    solver = ConjugateGradient(ImplicitHeat(conductivity=900.0))
    for step in range(8):
        response, iterations = solver.solve(sources(step, rank))
        snapshot(response, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
