"""Features of shards, kept on the local disk up to a number of bytes."""
import os
from collections import OrderedDict

import torch


class DiskCache:
    def __init__(self, folder, limit):
        self.folder = folder
        self.limit = limit
        self.sizes = OrderedDict()

    def file(self, key):
        return os.path.join(self.folder, f"{key}.pt")

    def get(self, key):
        if key not in self.sizes:
            return None
        self.sizes.move_to_end(key)
        return torch.load(self.file(key))

    def put(self, key, value):
        tmp = self.file(key) + ".tmp"
        torch.save(value, tmp)
        os.replace(tmp, self.file(key))
        self.sizes[key] = os.path.getsize(self.file(key))
        self.trim()

    def trim(self):
        while sum(self.sizes.values()) > self.limit and len(self.sizes) > 1:
            key, _ = self.sizes.popitem(last=False)
            os.remove(self.file(key))
