import torch

from calm import PAD


class Corpus:
    """Token batches of a rank; the last shard is filled up so that all have as many batches."""

    def __init__(self, rank, world, vocab, sentences, batch=6, length=12):
        per_rank = -(-sentences // world)
        per_rank = -(-per_rank // batch) * batch
        rows = []
        for number in range(rank * per_rank, (rank + 1) * per_rank):
            if number < sentences:
                g = torch.Generator().manual_seed(number)
                rows.append(torch.randint(1, vocab, (length,), generator=g))
            else:
                rows.append(torch.full((length,), PAD))
        self.batches = torch.stack(rows).split(batch)

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)
