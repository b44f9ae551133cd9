"""Replica exchange with neighbouring temperatures on neighbouring ranks."""
import math
import time

import torch
import torch.distributed as dist

from replica import Replica

BETA = (4.0, 2.0, 1.0, 0.5)
WIDTH = (0.12, 0.9, 0.25, 0.3)


def partner_of(rank, world, step):
    other = rank + 1 if (rank + step) % 2 == 0 else rank - 1
    return other if 0 <= other < world else None


def trade(replica, other):
    theirs = torch.empty_like(replica.x)
    ops = [
        dist.P2POp(dist.isend, replica.x, other),
        dist.P2POp(dist.irecv, theirs, other),
    ]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    replica.x = theirs


def exchange(replica, energies, rank, step):
    u = replica.coin.random()
    other = partner_of(rank, len(energies), step)
    if other is None:
        return False
    gap = (BETA[rank] - BETA[other]) * (energies[rank] - energies[other])
    if math.log(u) >= gap:
        return False
    trade(replica, other)
    return True


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    replica = Replica(rank, BETA[rank], WIDTH[rank])
    swaps = 0
    for step in range(100):
        for _ in range(10):
            replica.move()
        replica.unstick()
        mine = torch.tensor([replica.energy()])
        shared = [torch.empty(1) for _ in range(world)]
        dist.all_gather(shared, mine)
        energies = [e.item() for e in shared]
        swaps += exchange(replica, energies, rank, step)
        if rank == 0 and step % 5 == 0:
            print(step, swaps, [round(e, 2) for e in energies], flush=True)
        time.sleep(0.08)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
