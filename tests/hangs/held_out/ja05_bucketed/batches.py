import torch

BUCKETS = (16, 24, 32, 48)


def bucket(length):
    for size in BUCKETS:
        if length <= size:
            return size
    return -(-length // 16) * 16


class Documents:
    """Batches of documents of about the same length, padded to the bucket."""

    def __init__(self, rank, world, vocabulary, batch=6):
        self.vocabulary = vocabulary
        self.batch = batch
        lengths = [(11 * i + 5) % 44 + 4 for i in range(48)]
        lengths[25] = 53
        self.lengths = lengths[rank::world]

    def __len__(self):
        return len(self.lengths)

    def __iter__(self):
        for number, length in enumerate(self.lengths):
            generator = torch.Generator().manual_seed(number)
            ids = torch.zeros(self.batch, bucket(length), dtype=torch.long)
            ids[:, :length] = torch.randint(1, self.vocabulary, (self.batch, length), generator=generator)
            yield ids
