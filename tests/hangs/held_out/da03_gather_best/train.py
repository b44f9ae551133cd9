import torch
import torch.distributed as dist

from report import Leaderboard
from search import Trial

EPOCHS = 8


def share(loss, world):
    """Losses of all ranks, by rank."""
    out = [torch.zeros(1, dtype=torch.float64) for _ in range(world)]
    dist.all_gather(out, torch.tensor([loss], dtype=torch.float64))
    return {r: t.item() for r, t in enumerate(out)}


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    trial = Trial(rank)
    board = Leaderboard(rank, world)
    for epoch in range(EPOCHS):
        loss = trial.epoch(epoch)
        losses = share(loss, world)
        if trial.diverged(loss):
            loss = trial.epoch(epoch, filtered=True)
            losses[rank] = loss
        board.observe(losses)
        home = board.collect(trial.describe(epoch, loss))
        if rank == home:
            print(f"epoch {epoch}: best so far on rank {home}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
