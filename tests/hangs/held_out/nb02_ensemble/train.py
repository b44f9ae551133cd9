"""Ensemble assimilation: members are nudged to the mean of their pair, and compared in a ring."""
import time

import torch
import torch.distributed as dist

from member import Member

CYCLES = 14


def pair_mean(member, pair):
    mean = member.state.clone()
    dist.all_reduce(mean, group=pair)
    return mean / 2


def compare(member, rank, world):
    left = torch.empty(3)
    request = dist.isend(member.state, dst=(rank + 1) % world)
    dist.recv(left, src=(rank - 1) % world)
    request.wait()
    return (left - member.state).norm()


def relax(member, rank):
    """Nudge until the spread of the whole ensemble is small, at most a few times."""
    for attempt in range(6):
        spread = member.state.std().reshape(1)
        dist.all_reduce(spread, op=dist.ReduceOp.MAX)
        if spread.item() < 9 + attempt:
            return attempt
        member.state = 0.95 * member.state
    return attempt


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    member = Member(rank)
    store = dist.PrefixStore("ensemble", dist.distributed_c10d._get_default_store())
    for cycle in range(CYCLES):
        member.integrate(0.2 + 0.1 * rank)
        if cycle % 3 == 0 and rank < 2 or cycle % 2 == 0 and rank >= 2:
            member.nudge(pair_mean(member, pairs[rank // 2]))
        distance = compare(member, rank, world)
        rounds = relax(member, rank)
        if rank == 3 and cycle == 8:
            time.sleep(4)
            store.set("observations", "ready")
        if cycle == 8:
            store.wait(["observations"])
        member.store(cycle)
        if rank == 0 and cycle % 4 == 0:
            print(f"cycle {cycle}: distance {distance:.3f} relaxed {rounds}", flush=True)
    member.writer.join()
    counts = [None] * world
    dist.all_gather_object(counts, len(member.archive))
    if rank == 0:
        print("archived", counts, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
