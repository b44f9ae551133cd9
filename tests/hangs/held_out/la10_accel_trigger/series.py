import torch
from torch.utils.data import Dataset

WINDOW = 24


class LoadSeries(Dataset):
    """Hourly load of a grid; station 2 has a broken meter for a while."""

    def __init__(self, hours=1200, stations=3):
        g = torch.Generator().manual_seed(3)
        t = torch.arange(hours + WINDOW + 1)
        base = torch.sin(t * 2 * torch.pi / 24)
        self.values = base + 0.1 * torch.randn(stations, len(t), generator=g)
        self.values[2, 200:215] = 60.0
        self.hours, self.stations = hours, stations

    def __len__(self):
        return self.hours * self.stations

    def __getitem__(self, index):
        hour, station = divmod(index, self.stations)
        window = self.values[station, hour : hour + WINDOW + 1]
        return window[:-1], window[-1:]


class StationSampler:
    """Gives each process its station, in order of time."""

    def __init__(self, dataset, station, stride):
        self.indices = range(station, len(dataset), dataset.stations * stride)

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return len(self.indices)
