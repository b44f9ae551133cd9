import torch
import torch.distributed as dist

from trial import MedianStopper, Trial

GRID = {"a": 0.02, "b": 0.05}


def make_data(rank, step):
    g = torch.Generator().manual_seed(rank * 1000 + step)
    x = torch.randn(16, 6, generator=g)
    y = x.sum(1, keepdim=True) * 0.3
    if rank == 3 and step in (9, 10):
        y = y * 12                       # a shard with mislabelled rows
    return x, y


def run_trial(trial, rank, steps):
    stopper = MedianStopper()
    loss = float("nan")
    for step in range(steps):
        loss = trial.step(*make_data(rank, step))
        if stopper.should_stop(loss):
            return {"trial": trial.name, "loss": loss, "steps": step + 1, "pruned": True}
    return {"trial": trial.name, "loss": loss, "steps": steps, "pruned": False}


def assign(rank, world):
    half = world // 2
    groups = [list(range(half)), list(range(half, world))]
    handles = [dist.new_group(g) for g in groups]
    which = rank // half
    return groups[which], handles[which], list(GRID.items())[which]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    ranks, group, (name, lr) = assign(rank, world)
    for rung, steps in enumerate((8, 16)):
        trial = Trial(f"{name}{rung}", lr, ranks, group)
        result = run_trial(trial, rank, steps)
        results = [None] * world
        dist.all_gather_object(results, result)
        best = min(results, key=lambda r: r["loss"])
        if rank == 0:
            print("rung", rung, "best", best, flush=True)
        lr = lr * (0.5 if best["trial"] != trial.name else 1.0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
