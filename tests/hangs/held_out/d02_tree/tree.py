import torch
import torch.distributed as dist


def reduce_tree(vec, lo, hi, rank):
    """Sum over the ranks lo … hi - 1; the sum is on rank lo."""
    if hi - lo == 1:
        return vec
    mid = (lo + hi + 1) // 2
    vec = reduce_tree(vec, lo, mid, rank) if rank < mid else reduce_tree(vec, mid, hi, rank)
    if rank == mid:
        dist.send(vec, lo)
    elif rank == lo:
        other = torch.empty_like(vec)
        dist.recv(other, mid)
        vec = vec + other
    return vec


def spread_tree(vec, lo, hi, rank):
    if hi - lo == 1:
        return vec
    mid = (lo + hi + 1) // 2
    if rank == lo:
        dist.send(vec, mid)
    elif rank == mid:
        dist.recv(vec, lo)
    return spread_tree(vec, lo, mid, rank) if rank < mid else spread_tree(vec, mid, hi, rank)


def all_reduce_tree(vec):
    rank, world = dist.get_rank(), dist.get_world_size()
    total = reduce_tree(vec, 0, world, rank)
    return spread_tree(total.clone(), 0, world, rank)
