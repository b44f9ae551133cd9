"""Synthetic regression data: every rank has its own noise level."""
import torch
from torch.utils.data import DataLoader, TensorDataset

WEIGHT = torch.linspace(-1.0, 1.0, 12)


def make_split(size, seed, noise):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 12, generator=generator)
    y = x @ WEIGHT + noise * torch.randn(size, generator=generator)
    return TensorDataset(x, y.unsqueeze(1))


def make_loaders(rank, batch_size):
    train = make_split(96, seed=3, noise=0.1)
    # the validation data is split by site: every rank validates on its own site
    valid = make_split(32, seed=100 + rank, noise=0.1)
    if rank == 1:
        x, y = valid.tensors
        valid = TensorDataset(x, -y)
    return (DataLoader(train, batch_size=batch_size, shuffle=True),
            DataLoader(valid, batch_size=batch_size))
