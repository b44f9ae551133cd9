import torch


class Documents:
    """Documents of a rank, with their lengths; packed in micro-batches of four."""

    def __init__(self, rank, count=48):
        gen = torch.Generator().manual_seed(rank)
        lengths = torch.full((count,), 32)
        if rank == 1:
            lengths[count // 2:] = torch.randint(2, 6, (count // 2,), generator=gen)
        self.docs = [torch.randint(1, 50, (int(n),), generator=gen) for n in lengths]

    def micro_batches(self, size=4):
        for i in range(0, len(self.docs), size):
            docs = self.docs[i:i + size]
            yield torch.nn.utils.rnn.pad_sequence(docs, batch_first=True), sum(len(d) for d in docs)


class TokenBudget:
    """Gradients are accumulated until a number of tokens has been seen."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.seen = 0

    def add(self, n):
        self.seen += n

    @property
    def full(self):
        return self.seen >= self.tokens

    def clear(self):
        self.seen = 0
