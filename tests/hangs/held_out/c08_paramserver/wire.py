import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

SERVER = 0


def push(tensor, dst):
    dist.send(tensor.contiguous(), dst)


def pull(like, src):
    out = torch.empty_like(like)
    dist.recv(out, src)
    return out


def flat(net):
    return parameters_to_vector(net.parameters()).detach()


def load(net, vec):
    vector_to_parameters(vec, net.parameters())


def flat_grad(net):
    return torch.cat([p.grad.flatten() for p in net.parameters()])
