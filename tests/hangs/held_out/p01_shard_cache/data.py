"""Shards of packed records, decoded once and shared by the worker processes."""
import struct

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

RECORD = struct.Struct("<16f i")
MAGIC = 0x5A


def write_shard(rank, count=96):
    """Pack a shard as the converter does. Some shards have records of an older version."""
    gen = torch.Generator().manual_seed(11 + rank)
    blob = []
    for i in range(count):
        x = torch.randn(16, generator=gen)
        label = int(x.sum() > 0)
        version = 1 if (rank == 1 and i in (5, 40)) else 2
        blob.append(bytes([MAGIC, version]) + RECORD.pack(*x.tolist(), label))
    return blob


def decode(raw):
    if raw[0] != MAGIC:
        raise ValueError("not a record")
    *values, label = RECORD.unpack(raw[2:])
    return torch.tensor(values), label


class ShardDataset(Dataset):
    """The records of one rank with a table of decoded values in shared memory."""

    def __init__(self, blob):
        self.blob = blob
        self.lock = mp.Lock()
        self.values = torch.zeros(len(blob), 16).share_memory_()
        self.labels = torch.zeros(len(blob), dtype=torch.long).share_memory_()
        self.known = torch.zeros(len(blob), dtype=torch.bool).share_memory_()

    def __len__(self):
        return len(self.blob)

    def _store(self, i):
        x, y = decode(self.blob[i])
        self.values[i] = x
        self.labels[i] = y
        self.known[i] = True

    def preload(self, count):
        """Decode the first records before the workers start; returns how many were decoded."""
        self.lock.acquire()
        for i in range(count):
            if self.blob[i][1] < 2:
                return i
            self._store(i)
        self.lock.release()
        return count

    def __getitem__(self, i):
        with self.lock:
            if not self.known[i]:
                self._store(i)
        return self.values[i], self.labels[i]


def make_loader(rank, batch=8):
    data = ShardDataset(write_shard(rank))
    done = data.preload(16)
    print(f"rank {rank}: {done} records preloaded", flush=True)
    return DataLoader(data, batch_size=batch, num_workers=2, drop_last=True)
