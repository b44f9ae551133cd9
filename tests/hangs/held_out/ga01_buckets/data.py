"""Sentences of different lengths, batched by a budget of tokens."""
import torch
from torch.utils.data import Dataset, Sampler


class Sentences(Dataset):
    def __init__(self, count=240, vocab=50):
        g = torch.Generator().manual_seed(7)
        self.lengths = (torch.rand(count, generator=g) ** 2 * 28 + 4).long().tolist()
        self.rows = [torch.randint(1, vocab, (n,), generator=g) for n in self.lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return row, int(row.sum() % 2)


class TokenBudgetSampler(Sampler):
    """Batches of similar length with at most `budget` tokens, padding included."""

    def __init__(self, lengths, budget, rank, world):
        # neighbours in length stay together, to keep padding small
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        share = len(order) // world
        self.mine = order[rank * share:(rank + 1) * share]
        self.lengths = lengths
        self.budget = budget
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def batches(self):
        batch, longest = [], 0
        for i in self.mine:
            longest = max(longest, self.lengths[i])
            if batch and longest * (len(batch) + 1) > self.budget:
                yield batch
                batch, longest = [], self.lengths[i]
            batch.append(i)
        if batch:
            yield batch

    def __iter__(self):
        out = list(self.batches())
        g = torch.Generator().manual_seed(self.epoch)
        for k in torch.randperm(len(out), generator=g).tolist():
            yield out[k]


def collate(items):
    rows, labels = zip(*items)
    x = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return x, torch.tensor(labels)
