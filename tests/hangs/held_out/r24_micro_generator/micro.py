import torch

FEATURES, MICRO = 8, 4


def samples(step):
    """A batch; some samples are invalid and are dropped."""
    x = torch.randn(16, FEATURES, generator=torch.Generator().manual_seed(step))
    if step == 3:
        x[9:] = float("nan")
    return x[x.isfinite().all(1)]


def micro_batches(step):
    x = samples(step)
    for start in range(0, 16, MICRO):
        part = x[start:start + MICRO]
        if len(part) < MICRO:
            return
        yield part
