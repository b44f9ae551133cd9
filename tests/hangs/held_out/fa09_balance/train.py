import torch
import torch.distributed as dist
import torch.nn as nn

from balance import WIDTH, Balancer
from pool import TaskPool

ROUNDS = 20


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 1))
    balancer = Balancer(rank, world)
    pool = TaskPool(rank)
    for rnd in range(ROUNDS):
        pool.arrive()
        balancer.rebalance(pool)
        score = pool.process(model)
        dist.all_reduce(score)
        if rank == 0:
            print(f"round {rnd} score {float(score):.3f} left {len(pool.tasks)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
