import torch


class Batches:
    def __init__(self, records, dim, batch):
        self.x = torch.randn(records, dim, generator=torch.Generator().manual_seed(0))
        self.batch = batch

    def __iter__(self):
        yield from self.x.split(self.batch)

    def __len__(self):
        return -(-len(self.x) // self.batch)
