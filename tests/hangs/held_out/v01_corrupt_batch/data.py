"""Record shards, decoding, and the loader of a rank."""
import struct

import torch
from torch.utils.data import DataLoader, Dataset

DIM = 12
RECORD = struct.Struct(f"<I{DIM}fI")
MAGIC = 0xC0FFEE


def write_record(values, label, magic=MAGIC):
    return RECORD.pack(magic, *values, label)


def build_shard(rank, count):
    gen = torch.Generator().manual_seed(100 + rank)
    records = []
    for i in range(count):
        x = torch.randn(DIM, generator=gen)
        label = int(x.sum() > 0)
        truncated = rank == 1 and 40 <= i < 48
        records.append(write_record(x.tolist(), label, 0 if truncated else MAGIC))
    return records


class RecordDataset(Dataset):
    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        magic, *values, label = RECORD.unpack(self.records[index])
        if magic != MAGIC:
            return None
        return torch.tensor(values), label


def collate(samples):
    samples = [s for s in samples if s is not None]
    if not samples:
        return None
    xs, ys = zip(*samples)
    return torch.stack(xs), torch.tensor(ys)


def make_loader(rank, batch_size=8, count=96):
    return DataLoader(
        RecordDataset(build_shard(rank, count)),
        batch_size=batch_size,
        num_workers=2,
        collate_fn=collate,
        persistent_workers=True,
    )
