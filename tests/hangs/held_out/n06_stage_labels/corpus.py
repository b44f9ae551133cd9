import torch

from stages import IGNORE, VOCAB


class Corpus:
    """Chat turns: only the tokens of the answers carry labels."""

    def __init__(self, batches, size=8, length=12):
        self.batches, self.size, self.length = batches, size, length

    def epoch(self, epoch):
        gen = torch.Generator().manual_seed(90 + epoch)
        for i in range(self.batches):
            tokens = torch.randint(0, VOCAB, (self.size, self.length), generator=gen)
            labels = tokens.roll(-1, 1).clone()
            prompt = self.length if (epoch, i) == (1, 7) else self.length // 3
            labels[:, :prompt] = IGNORE
            yield tokens, labels
