import torch


class Documents:
    """Fixed-size windows over the text of one rank."""

    def __init__(self, rank, window=16):
        chars = [900, 900, 780][rank]
        gen = torch.Generator().manual_seed(rank)
        self.text = torch.randint(20, (chars,), generator=gen)
        self.window = window

    def windows(self, batch=4):
        rows = []
        for start in range(0, len(self.text) - self.window, self.window):
            rows.append(self.text[start:start + self.window + 1])
            if len(rows) == batch:
                yield torch.stack(rows)
                rows = []
