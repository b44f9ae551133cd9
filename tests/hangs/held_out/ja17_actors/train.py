import torch
import torch.distributed as dist

from actor import Actor
from learner import Learner

PER_ROUND = {1: 6, 2: 4, 3: 2}
ROUNDS = 9


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    actors = dist.new_group(list(range(1, world)))
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        received = Learner(ROUNDS, PER_ROUND).run()
        store.set("learner/received", str(received))
    else:
        Actor(rank, actors, ROUNDS, PER_ROUND).run()
        store.wait(["learner/received"])
    reports = [None] * world if rank == 0 else None
    dist.gather_object({"rank": rank, "received": int(store.get("learner/received"))}, reports, dst=0)
    if rank == 0:
        print(reports, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
