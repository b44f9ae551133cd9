import json
import os
import tempfile

import torch
import torch.distributed as dist

from utils import retry


class MixtureFile:
    """Weights of the data sources; an external job rewrites the files of the ranks."""

    def __init__(self, rank, sources=4):
        self.rank = rank
        self.sources = sources
        self.folder = tempfile.mkdtemp(prefix=f"mix{rank}_")
        for version in range(6):
            text = json.dumps({"weights": [1.0 + (i + version) % sources for i in range(sources)]})
            if rank == 1 and version == 2:
                text = text[: len(text) // 2]
            with open(self.path(version), "w") as f:
                f.write(text)

    def path(self, version):
        return os.path.join(self.folder, f"mix-{version}.json")

    @retry(times=3)
    def refresh(self, version):
        with open(self.path(version)) as f:
            weights = json.load(f)["weights"]
        agreed = [None] * dist.get_world_size()
        dist.all_gather_object(agreed, weights)
        mean = torch.tensor(agreed).mean(0)
        return mean / mean.sum()


class Mixture:
    def __init__(self, rank):
        self.file = MixtureFile(rank)
        self.gen = torch.Generator().manual_seed(rank)
        self.probs = torch.full((self.file.sources,), 1 / self.file.sources)

    def update(self, version):
        probs = self.file.refresh(version)
        if probs is not None:
            self.probs = probs

    def batch(self, size=8, dim=6):
        source = torch.multinomial(self.probs, size, replacement=True, generator=self.gen)
        x = torch.randn(size, dim, generator=self.gen) + source[:, None]
        return x, source
