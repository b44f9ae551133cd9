import torch
import torch.distributed as dist

from grid import Grid2D
from solver import HeatSolver

ROWS, COLS, N = 2, 2, 8
STEPS = 30


def initial(grid):
    torch.manual_seed(grid.rank)
    grid.u[1:-1, 1:-1] = 0.05 * torch.rand(N, N)
    if (grid.r, grid.c) == (1, 1):
        grid.u[3:7, 3:7] = 1.0


def report(step, heat, rank):
    if rank == 0:
        print(f"step {step} heat {heat:.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    assert dist.get_world_size() == ROWS * COLS
    grid = Grid2D(rank, ROWS, COLS, N)
    initial(grid)
    solver = HeatSolver(grid, torch.full((N, N), 0.8), dt=0.25)
    for step in range(STEPS):
        solver.advance()
        solver.soften(step)
        report(step, solver.total_heat(), rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
