import torch
from torch.utils.data import DataLoader, Dataset

IGNORE = -100


class TagDataset(Dataset):
    """Sequences of tokens; tags that annotators left open are IGNORE."""

    def __init__(self, rank, size=40, length=10):
        generator = torch.Generator().manual_seed(rank)
        self.tokens = torch.randint(0, 50, (size, length), generator=generator)
        self.tags = self.tokens % 5
        if rank == 2:
            self.tags[20:24] = IGNORE    # documents that were not annotated
        else:
            self.tags[20:23] = IGNORE

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index], self.tags[index]


def loader_of(rank):
    return DataLoader(TagDataset(rank), batch_size=4, num_workers=1)
