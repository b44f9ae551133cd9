import hashlib
import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist

TEXT = {
    "train": "the cat sat on the mat while the dog ran over the hill " * 20,
    "valid": "a dog sat on a hill while a cat ran over a mat " * 6,
}


class Corpus:
    """Token files made by rank 0; the other ranks wait until they are ready."""

    def __init__(self, root, store, seq_len=8, lower=True):
        self.root = root
        self.store = store
        self.rank = dist.get_rank()
        self.config = {"seq_len": seq_len, "lower": lower, "version": 3}

    def fingerprint(self):
        return hashlib.sha1(json.dumps(self.config, sort_keys=True).encode()).hexdigest()[:12]

    def path(self):
        return os.path.join(self.root, f"tokens-{self.fingerprint()}.pt")

    def tokenize(self, text):
        words = text.lower().split() if self.config["lower"] else text.split()
        vocab = {w: i for i, w in enumerate(sorted(set(words)))}
        ids = torch.tensor([vocab[w] for w in words])
        n = self.config["seq_len"] + 1
        return {"ids": ids[: len(ids) // n * n].view(-1, n), "vocab": len(vocab)}

    def prepare(self, split):
        if os.path.exists(self.path()):
            return
        torch.save(self.tokenize(TEXT[split]), self.path())
        self.store.set(f"corpus/{split}", "ready")

    def load(self, split):
        if self.rank == 0:
            self.prepare(split)
        else:
            self.store.wait([f"corpus/{split}"], timedelta(minutes=60))
        return torch.load(self.path())
