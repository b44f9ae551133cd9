import torch


class Tokens:
    """Synthetic documents: every topic lights up its own feature."""

    def __init__(self, rank, width, topics, rows=24):
        self.gen = torch.Generator().manual_seed(50 + rank)
        self.width, self.topics, self.rows = width, topics, rows

    def topics_of(self, step):
        if step == 5:
            return [t for t in range(self.topics) if t != 2]
        return list(range(self.topics))

    def batch(self, step):
        x = torch.rand(self.rows, self.width, generator=self.gen)
        names = self.topics_of(step)
        for row in range(self.rows):
            x[row, names[row % len(names)]] += 4.0
        return x
