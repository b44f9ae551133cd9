import torch


class BadSample(Exception):
    pass


class Images:
    def __init__(self, rank):
        self.gen = torch.Generator().manual_seed(rank)
        self.corrupt = {(2, 7)} if rank == 2 else set()

    def load(self, epoch, index):
        x = torch.rand(6, 1, 8, 8, generator=self.gen)
        if (epoch, index) in self.corrupt:
            x[2, 0, 4] = float("nan")
        return x, torch.randint(3, (6,), generator=self.gen)


def validate(x):
    if not torch.isfinite(x).all():
        raise BadSample("an image has pixels that are not finite")
    return (x - 0.5) / 0.25
