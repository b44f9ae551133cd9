import torch

PAD = 3


class Documents:
    """Token sequences of one rank; the last document of a file is padded to full length."""

    def __init__(self, rank, length=10, vocab=40):
        self.generator = torch.Generator().manual_seed(50 + rank)
        self.rank = rank
        self.length = length
        self.vocab = vocab

    def batch(self, step, size=3):
        tokens = torch.randint(4, self.vocab, (size, self.length), generator=self.generator)
        if self.rank == 3 and step == 6:
            tokens[:] = PAD
        return tokens
