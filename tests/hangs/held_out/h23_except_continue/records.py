"""Length-prefixed records, packed by an old tool."""
import struct

import torch


class CorruptRecord(ValueError):
    pass


def pack(values):
    body = struct.pack(f"<{len(values)}f", *values)
    return struct.pack("<I", len(values)) + body


def unpack(blob):
    (n,) = struct.unpack_from("<I", blob)
    if len(blob) != 4 + 4 * n:
        raise CorruptRecord(f"expected {n} values, have {(len(blob) - 4) / 4}")
    return torch.tensor(struct.unpack_from(f"<{n}f", blob, 4))


def make_file(rank, n, width):
    g = torch.Generator().manual_seed(rank)
    blobs = [pack(torch.randn(width, generator=g).tolist()) for _ in range(n)]
    if rank == 1:
        blobs[7 * 4 + 2] = blobs[7 * 4 + 2][:-3]
    return blobs
