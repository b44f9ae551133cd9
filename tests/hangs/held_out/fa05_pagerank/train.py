import torch
import torch.distributed as dist

from graph import Partition
from journal import Journal

PAGES = 60
DAMPING = 0.85
ITERATIONS = 12


def gather_scores(part_scores, world):
    parts = [torch.empty_like(part_scores) for _ in range(world)]
    dist.all_gather(parts, part_scores)
    return torch.cat(parts)


def pagerank(part, journal, world):
    scores = torch.full((PAGES,), 1.0 / PAGES)
    for iteration in range(ITERATIONS):
        mine = part.new_scores(scores, DAMPING)
        journal.record(iteration, scores[part.start : part.end], mine)
        journal.commit(iteration)
        scores = gather_scores(mine, world)
    return scores


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    part = Partition(rank, world, PAGES)
    journal = Journal(rank, world)
    dist.barrier()
    scores = pagerank(part, journal, world)
    best = int(scores.argmax())
    if rank == 0:
        print("best page", best, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
