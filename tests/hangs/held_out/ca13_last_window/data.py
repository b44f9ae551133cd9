import torch
from torch.utils.data import DataLoader, TensorDataset


def hospital(rank):
    """Each rank reads the data of one hospital; nothing is shared between them."""
    count = [64, 68, 64][rank]
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(count, 11, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long()
    return TensorDataset(x, y)


def loader(rank, batch_size=8):
    return DataLoader(hospital(rank), batch_size=batch_size, shuffle=True)
