"""Rank 0 has the oracle: workers send rows, rank 0 labels them and sends all of them to everyone."""
import torch
import torch.distributed as dist

from pool import oracle


def send_rows(rows):
    dist.send(torch.tensor(rows.shape), dst=0)
    dist.send(rows.contiguous(), dst=0)


def receive_rows(src):
    shape = torch.zeros(2, dtype=torch.long)
    dist.recv(shape, src=src)
    rows = torch.empty(shape.tolist())
    dist.recv(rows, src=src)
    return rows


class Annotator:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world

    def collect(self, rows):
        parts = [rows] + [receive_rows(src) for src in range(1, self.world)]
        x = torch.cat(parts)
        return x, oracle(x)

    def round(self, rows):
        box = [None]
        if self.rank == 0:
            box = [self.collect(rows)]
        elif len(rows) > 0:
            send_rows(rows)
        dist.broadcast_object_list(box, src=0)
        return box[0]
