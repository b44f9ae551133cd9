import torch
import torch.distributed as dist
import torch.nn as nn

HIDDEN = 16
SEQ = 6
MICRO = 2
VOCAB = 11
IGNORE = -100


def build_stage(rank, world):
    torch.manual_seed(10 + rank)
    if rank == 0:
        return nn.Sequential(nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
    if rank == world - 1:
        return nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, VOCAB))
    return nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.GELU())


class Link:
    """Activations go down the pipeline, gradients come back; the tag is the micro batch."""

    def __init__(self, rank, world):
        self.prev = rank - 1 if rank > 0 else None
        self.next = rank + 1 if rank < world - 1 else None
        self.in_flight = []

    def recv_activation(self, mb):
        buf = torch.empty(MICRO, SEQ, HIDDEN)
        dist.recv(buf, src=self.prev, tag=mb)
        return buf.requires_grad_()

    def send_activation(self, out, mb):
        data = out.detach().contiguous()
        self.in_flight.append((dist.isend(data, dst=self.next, tag=mb), data))

    def recv_grad(self, mb):
        buf = torch.empty(MICRO, SEQ, HIDDEN)
        dist.recv(buf, src=self.next, tag=1000 + mb)
        return buf

    def send_grad(self, grad, mb):
        data = grad.contiguous()
        self.in_flight.append((dist.isend(data, dst=self.prev, tag=1000 + mb), data))

    def flush(self):
        for handle, _ in self.in_flight:
            handle.wait()
        self.in_flight.clear()
