"""Parameter server on rank 0, an evaluator on the last rank, trainers between."""
import time

import torch
import torch.distributed as dist

from roles import Evaluator, Server, Worker

ROUNDS = 15


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    workers = list(range(1, world - 1))
    if rank == 0:
        Server(workers, evaluator=world - 1).run(ROUNDS)
    elif rank == world - 1:
        Evaluator(every=5).run(ROUNDS)
    else:
        Worker(rank).run(ROUNDS)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
