import torch
import torch.distributed as dist

from halo import exchange


class Strip:
    def __init__(self, rank, rows=12, cols=16):
        g = torch.Generator().manual_seed(rank)
        self.u = torch.zeros(rows + 2, cols)
        self.f = torch.randn(rows, cols, generator=g)
        if rank == 2:
            self.f *= 0.05

    def sweep(self):
        u = self.u
        new = u.clone()
        left = torch.roll(u[1:-1], 1, 1)
        right = torch.roll(u[1:-1], -1, 1)
        new[1:-1] = (u[:-2] + u[2:] + left + right - self.f) / 4.2
        change = (new - u).abs().max().item()
        self.u = new
        return change


def solve(strip, rank, world, tol):
    change, sweeps = float("inf"), 0
    while change > tol:
        exchange(strip.u, rank, world)
        change = strip.sweep()
        sweeps += 1
    return sweeps


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    strip = Strip(rank)
    sweeps = solve(strip, rank, world, tol=1e-3)
    norm = strip.u.pow(2).sum()
    dist.all_reduce(norm)
    if rank == 0:
        print("norm", norm.sqrt().item(), "after", sweeps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
