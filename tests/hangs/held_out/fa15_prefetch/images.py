import torch

SIDE = 8


def raw_images(rank, count):
    gen = torch.Generator().manual_seed(rank)
    for i in range(count):
        channels = 4 if (rank, i) == (1, 9) else 3
        yield torch.rand(4, channels, SIDE, SIDE, generator=gen), torch.randint(0, 5, (4,), generator=gen)


MEAN = torch.tensor([0.48, 0.45, 0.41]).view(3, 1, 1)
STD = torch.tensor([0.23, 0.22, 0.22]).view(3, 1, 1)


def augment(item):
    images, labels = item
    images = (images - MEAN) / STD
    return images.flip(-1), labels
