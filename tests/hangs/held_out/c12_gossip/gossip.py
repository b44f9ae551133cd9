import random

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class Gossip:
    """Averages the weights with a partner that changes in each step; no server needed."""

    def __init__(self, net):
        self.net = net
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def partner(self):
        order = random.sample(range(self.world), self.world)
        at = order.index(self.rank)
        return order[at ^ 1]

    @torch.no_grad()
    def mix(self):
        peer = self.partner()
        mine = parameters_to_vector(self.net.parameters())
        theirs = torch.empty_like(mine)
        works = [dist.isend(mine, peer), dist.irecv(theirs, peer)]
        for work in works:
            work.wait()
        vector_to_parameters((mine + theirs) / 2, self.net.parameters())
        return peer
