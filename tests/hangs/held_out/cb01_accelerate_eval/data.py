import torch
from torch.utils.data import DataLoader, TensorDataset


def build(accelerator):
    with accelerator.main_process_first():
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(203, 9, generator=generator)
        y = (x.sum(dim=1) > 0).long()
    train = DataLoader(TensorDataset(x[:150], y[:150]), batch_size=8, shuffle=True)
    val = DataLoader(TensorDataset(x[150:], y[150:]), batch_size=8)
    return train, val
