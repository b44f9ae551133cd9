"""Ocean strip model: tracers are advanced once, fast waves several times per step."""
import time

import torch
import torch.distributed as dist

from basin import Basin

WIND = {0: 0.004, 1: 0.035, 2: 0.006}


def budget(basin):
    local = torch.stack([basin.height.sum(), basin.tracer.sum(), basin.current.square().sum()])
    parts = [torch.empty(3) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, local)
    return torch.stack(parts).sum(0)


def agree_on_dt(wanted):
    dt = torch.tensor([wanted])
    dist.all_reduce(dt, op=dist.ReduceOp.MIN)
    return dt.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    basin = Basin(rank, WIND[rank])
    dt = agree_on_dt(1.0 + 0.1 * rank)
    for step in range(60):
        basin.fast_waves(dt)
        basin.advect(dt)
        total = budget(basin)
        if rank == 0 and step % 5 == 0:
            print(step, [round(v, 4) for v in total.tolist()], flush=True)
        time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
