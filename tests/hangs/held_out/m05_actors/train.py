"""Actor-learner: actors post trajectories to the store, the learner broadcasts new weights."""
import torch
import torch.distributed as dist

from actor import Actor
from learner import Learner


def main():
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        Learner(store, dist.get_world_size() - 1).run(updates=12)
    else:
        Actor(store, dist.get_rank()).run(updates=12)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
