"""Union of sets over all ranks, by a butterfly of sends and receives."""
import torch
import torch.distributed as dist


class Butterfly:
    def __init__(self):
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        if self.world & (self.world - 1):
            raise ValueError("the number of ranks has to be a power of two")

    def swap(self, mine, partner):
        theirs = torch.empty_like(mine)
        if self.rank < partner:
            dist.send(mine, partner)
            dist.recv(theirs, partner)
        else:
            dist.recv(theirs, partner)
            dist.send(mine, partner)
        return theirs

    def union(self, mask):
        """All ranks get the union of the masks, in log2(world) exchanges."""
        distance = 1
        while distance < self.world:
            merged = mask | self.swap(mask, self.rank ^ distance)
            if torch.equal(merged, mask):
                break
            mask = merged
            distance *= 2
        return mask
