import torch
import torch.distributed as dist

from halo import Halo
from scheme import Burgers

CELLS = 64
STEPS = 40


def initial(rank, world, dx):
    x = (torch.arange(CELLS) + rank * CELLS) * dx
    centre = CELLS * world * dx / 2
    return 0.3 + 0.5 * torch.exp(-((x - centre) / (10 * dx)) ** 2), x - centre


def energy(u, dx):
    total = (u * u).sum().mul(dx).reshape(1)
    dist.all_reduce(total)
    return total.item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    dx = 1.0 / (CELLS * world)
    u, x = initial(rank, world, dx)
    heating = torch.exp(-(x / (12 * dx)) ** 2)
    scheme = Burgers(Halo(), dx)
    dt = 0.5 * dx
    history = []
    for step in range(STEPS):
        u = scheme.advance(u, dt)
        u = u + 20.0 * dt * heating
        history.append(energy(u, dx))
        if rank == 0 and step % 5 == 0:
            print(f"step {step}: energy {history[-1]:.4f}", flush=True)
    profile = [torch.empty_like(u) for _ in range(world)] if rank == 0 else None
    dist.gather(u, profile, dst=0)
    if rank == 0:
        print("peak", float(torch.cat(profile).max()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
