"""Render farm: frames of tiles, gathered into a picture on rank 0."""
import time

import torch
import torch.distributed as dist

from render import SIZE, Dispenser, trace

TILES = 48
FRAMES = 5


def render(store, rank, frame):
    picture = torch.zeros(TILES, SIZE, SIZE)
    mine = 0
    for tile in Dispenser(store, frame, TILES):
        picture[tile] = trace(tile + frame * TILES, samples=20 + 40 * (rank == 2))
        mine += 1
    return picture, mine


def denoise(picture):
    deadline = time.monotonic() + 3
    rounds = 0
    while time.monotonic() < deadline:
        picture = 0.5 * (picture + picture.roll(1, 2))
        time.sleep(0.02)
        rounds += 1
    return picture, rounds


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("render", dist.distributed_c10d._get_default_store())
    previous = None
    for frame in range(FRAMES):
        picture, mine = render(store, rank, frame)
        work = dist.all_reduce(picture, async_op=True)
        shares = [None] * world if rank == 0 else None
        dist.gather_object(mine, shares, dst=0)
        if previous is not None and rank == 0 and frame % 2 == 0:
            print(f"change {(previous - previous.roll(1, 0)).abs().mean():.4f}", flush=True)
        work.wait()
        if rank == 0:
            print(f"frame {frame}: tiles {shares}", flush=True)
        if frame == 3 and rank == 0:
            picture, rounds = denoise(picture)
            print(f"denoised in {rounds} rounds", flush=True)
        previous = picture
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
