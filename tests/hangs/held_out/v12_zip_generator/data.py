import torch

DIM = 10


def labeled(rank, steps=16, batch=4):
    gen = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        x = torch.randn(batch, DIM, generator=gen)
        yield x, (x[:, 0] > 0).long()


class UnlabeledPool:
    """Crawled documents of the rank; near duplicates are dropped while reading."""

    def __init__(self, rank, size=80):
        gen = torch.Generator().manual_seed(900 + rank)
        self.rows = torch.randn(size, DIM, generator=gen)
        if rank == 3:
            self.rows[30:60] = self.rows[:30]
        self.seen = set()

    def fresh(self):
        for row in self.rows:
            key = hash(tuple((row * 8).round().int().tolist()))
            if key in self.seen:
                continue
            self.seen.add(key)
            yield row

    def batches(self, batch=4):
        rows = self.fresh()
        while True:
            chunk = []
            for row in rows:
                chunk.append(row)
                if len(chunk) == batch:
                    break
            if len(chunk) < batch:
                return
            yield torch.stack(chunk)
