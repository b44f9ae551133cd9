import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class Peer:
    def __init__(self, rank, other):
        self.rank, self.other = rank, other

    def swap(self, vector):
        theirs = torch.empty_like(vector)
        dist.send(vector, self.other)
        dist.recv(theirs, self.other)
        return theirs

    def mix(self, net):
        with torch.no_grad():
            mine = parameters_to_vector(net.parameters())
            vector_to_parameters((mine + self.swap(mine)) / 2, net.parameters())
