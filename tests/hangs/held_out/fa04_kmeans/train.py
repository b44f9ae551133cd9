import torch
import torch.distributed as dist

from kmeans import DistributedKMeans
from points import load_shard

MAX_ITERATIONS = 40


def drift(points, it, rank):
    """The stream moves: old points leave, and the fourth blob fades on some sources."""
    if rank == 2 and it >= 4:
        keep = points[:, 0] + points[:, 1] < 5.0
        return points[keep]
    return points


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    points = load_shard(rank)
    model = DistributedKMeans(4, 2, rank, world)
    model.init_from(points)
    for it in range(MAX_ITERATIONS):
        points = drift(points, it, rank)
        shift = model.update(points)
        inertia = model.inertia(points)
        if rank == 0:
            print(f"iteration {it} shift {shift:.5f} inertia {inertia:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
