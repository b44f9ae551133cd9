"""Search for a learning rate: rank 0 advises, the other ranks evaluate."""
import logging

import torch
import torch.distributed as dist

from objective import evaluate
from study import Study

log = logging.getLogger("trials")
RATES = [0.02 * (n + 1) for n in range(24)]


def work(rank):
    job = torch.empty(2)
    finished = 0
    while True:
        dist.recv(job, src=0)
        number, rate = job.tolist()
        if number < 0:
            return finished
        loss = evaluate(rank, rate)
        if loss is None:
            log.warning("trial %d diverged at rate %.2f", number, rate)
            continue
        dist.send(torch.tensor([number, loss]), dst=0)
        finished += 1


def main():
    logging.basicConfig(format="%(name)s: %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    best = torch.empty(2)
    if rank == 0:
        best = Study(enumerate(RATES), range(1, world)).run()
    else:
        finished = work(rank)
        log.info("rank %d: %d trials", rank, finished)
    dist.broadcast(best, src=0)
    if rank == 1:
        print(f"best loss {best[0]:.4f} of trial {best[1]:.0f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
