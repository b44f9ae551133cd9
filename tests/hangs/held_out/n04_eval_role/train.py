import argparse
import random
from datetime import timedelta

import torch
import torch.distributed as dist

from trainers import Evaluator, Trainer


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=8)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--seed", type=int, default=5)
    return p.parse_args()


def make(rank, world):
    kinds = {"train": Trainer, "eval": Evaluator}
    role = "eval" if rank == world - 1 else "train"
    return kinds[role](rank, world)


def summary(worker):
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, (type(worker).__name__, worker.history), group=worker.stats)
    if dist.get_rank() == 0:
        for rank, (kind, history) in enumerate(rows):
            print(rank, kind, [round(h, 3) for h in history], flush=True)


def main():
    args = parse()
    random.seed(args.seed)
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", timeout=timedelta(hours=2))
    rank, world = dist.get_rank(), dist.get_world_size()
    worker = make(rank, world)
    worker.start()
    for round_ in range(args.rounds):
        worker.run_round(round_)
        worker.end_round()
    summary(worker)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
