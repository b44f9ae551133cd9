import time

import torch


class Corpus:
    def __init__(self, tokens, length):
        self.tokens = tokens
        self.length = length

    def windows(self, batch, generator):
        last = self.tokens.numel() - self.length - 1
        while True:
            starts = torch.randint(0, last, (batch,), generator=generator).tolist()
            rows = [self.tokens[s:s + self.length + 1] for s in starts]
            block = torch.stack(rows)
            yield block[:, :-1], block[:, 1:]


def load(local_rank, vocabulary, length=24, stagger=0.7):
    time.sleep(local_rank * stagger)  # the file server does not like all readers at once
    generator = torch.Generator().manual_seed(100 + local_rank)
    tokens = torch.randint(0, vocabulary, (20_000,), generator=generator)
    return Corpus(tokens, length)
