from enum import IntEnum

import torch
import torch.distributed as dist

SIZE = 8 * 4 + 4


class Kind(IntEnum):
    PULL = 0
    PUSH = 1
    DONE = 2


def send_header(kind, dst, step):
    dist.send(torch.tensor([int(kind), step]), dst=dst)


def recv_header(src):
    header = torch.empty(2, dtype=torch.int64)
    dist.recv(header, src=src)
    return Kind(int(header[0])), int(header[1])


def send_vector(vec, dst):
    dist.send(vec.contiguous(), dst=dst)


def recv_vector(src):
    vec = torch.empty(SIZE)
    dist.recv(vec, src=src)
    return vec
