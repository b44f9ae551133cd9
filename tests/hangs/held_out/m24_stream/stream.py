import io

import torch
from torch.utils.data import IterableDataset


class Curriculum:
    def __init__(self, lengths):
        self.lengths = lengths

    def __iter__(self):
        yield from enumerate(self.lengths)


def documents(source, phase):
    """Lines of a (synthetic) text file: ids separated by blanks."""
    g = torch.Generator().manual_seed(100 * phase + source)
    lines = []
    for i in range(60):
        ids = torch.randint(1, 64, (int(torch.randint(10, 20, (1,), generator=g)),), generator=g).tolist()
        if (source, phase, i) == (3, 1, 19):
            ids = []
        lines.append(" ".join(map(str, ids)))
    return io.StringIO("\n".join(lines) + "\n")


def read_documents(f):
    while True:
        line = f.readline().strip()
        if not line:
            return
        yield [int(t) for t in line.split()]


def pack(docs, length):
    buffer = []
    for doc in docs:
        buffer += doc + [0]
        while len(buffer) > length:
            yield torch.tensor(buffer[:length + 1])
            buffer = buffer[length:]


class PackedStream(IterableDataset):
    def __init__(self, rank, world, phase, length, rows):
        self.rank, self.phase, self.length, self.rows = rank, phase, length, rows

    def __iter__(self):
        rows = pack(read_documents(documents(self.rank, self.phase)), self.length)
        for _, row in zip(range(self.rows), rows):
            yield row
