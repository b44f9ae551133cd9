import torch
import torch.distributed as dist
import torch.nn as nn

from roles import Evaluator, Worker


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    workers = dist.new_group(list(range(world - 1)))
    store = dist.PrefixStore("roles", dist.distributed_c10d._get_default_store())
    model = build()
    match rank:
        case r if r == world - 1:
            result = Evaluator(model, store).run()
        case _:
            result = Worker(model, store, workers, world - 1).run()
    results = [None] * world if rank == 0 else None
    dist.gather_object(result, results, dst=0)
    if rank == 0:
        for number, entry in enumerate(results):
            print(number, entry, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
