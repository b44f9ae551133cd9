import torch

CENTERS = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0]])


def load_shard(rank, per_blob=30):
    gen = torch.Generator().manual_seed(40 + rank)
    blobs = []
    for i, center in enumerate(CENTERS):
        if rank == 2 and i == 3:
            n = 2
        else:
            n = per_blob
        blobs.append(center + 0.6 * torch.randn(n, 2, generator=gen))
    return torch.cat(blobs)


def minibatches(points, size, rank):
    """Consecutive slices, so that a file is read once in order."""
    for start in range(0, len(points) - size + 1, size):
        yield points[start : start + size]
