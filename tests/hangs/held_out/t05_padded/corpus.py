import torch

PAD = 0


def batches(n, size=8, length=6):
    """Prompts and what should follow; prompts without an answer have only padding."""
    g = torch.Generator().manual_seed(5)
    for i in range(n):
        ids = torch.randint(1, 32, (size, length), generator=g)
        target = ids.roll(-1, 1)
        if i == 7:
            target = torch.full_like(ids, PAD)
        yield ids, target
