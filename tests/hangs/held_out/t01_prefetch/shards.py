"""Shards are fetched by a thread; the workers of the loader read them once they are complete."""
import os
import threading
import time

import numpy as np
import torch
from torch.utils.data import IterableDataset


class Fetcher(threading.Thread):
    """Copies the shards of this rank to local disk."""

    def __init__(self, folder, shards, streams=2):
        super().__init__(daemon=True, name="fetcher")
        self.folder, self.shards, self.streams = folder, shards, streams

    def path(self, index):
        return os.path.join(self.folder, f"shard-{index:03d}.npy")

    def fetch(self, index):
        rows = np.random.default_rng(index).normal(size=(32, 9)).astype(np.float32)
        tmp = self.path(index) + ".tmp.npy"
        np.save(tmp, rows)
        os.replace(tmp, self.path(index))

    def run(self):
        for start in range(len(self.shards) // self.streams):
            for s in range(self.streams):
                self.fetch(self.shards[start * self.streams + s])


class ShardDataset(IterableDataset):
    def __init__(self, folder, shards):
        self.folder, self.shards = folder, shards

    def wait_for(self, index):
        path = os.path.join(self.folder, f"shard-{index:03d}.npy")
        while not os.path.exists(path):
            time.sleep(0.05)
        return np.load(path)

    def __iter__(self):
        for index in self.shards:
            rows = self.wait_for(index)
            for row in rows:
                yield torch.from_numpy(row[:8].copy()), torch.tensor(row[8])
