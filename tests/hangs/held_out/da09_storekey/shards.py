import datetime
import hashlib
import os

import torch

WAIT = datetime.timedelta(minutes=30)


class ShardCache:
    """Rank 0 tokenizes a shard and announces it; the others wait for the announcement."""

    def __init__(self, store, rank, folder):
        self.store = store
        self.rank = rank
        self.folder = folder
        self.digests = {}

    def path(self, digest):
        return os.path.join(self.folder, f"{digest}.pt")

    def tokenize(self, text, target):
        ids = torch.tensor([ord(c) % 32 for c in text])
        torch.save(ids, target)

    def publish(self, epoch, text):
        digest = hashlib.sha1(text.encode()).hexdigest()[:10]
        target = self.path(digest)
        if digest in self.digests:
            return self.digests[digest]
        self.tokenize(text, target)
        self.digests[digest] = target
        self.store.set(f"shard/{epoch}", target)
        return target

    def await_shard(self, epoch):
        key = f"shard/{epoch}"
        self.store.wait([key], WAIT)
        return self.store.get(key).decode()

    def fetch(self, epoch, text):
        if self.rank == 0:
            return torch.load(self.publish(epoch, text))
        return torch.load(self.await_shard(epoch))
