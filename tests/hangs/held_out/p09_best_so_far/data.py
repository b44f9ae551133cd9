import torch


class Site:
    """Measurements of one site: two of the four have changed their sensors since the training data."""

    def __init__(self, index, dim=10):
        self.generator = torch.Generator().manual_seed(index)
        self.weights = torch.linspace(-1, 1, dim)
        self.drift = -1.0 if index % 2 else 1.0
        self.dim = dim

    def train(self, batches=6, size=16):
        for _ in range(batches):
            x = torch.randn(size, self.dim, generator=self.generator)
            yield x, (x @ self.weights).unsqueeze(1)

    def validation(self, size=64):
        x = torch.randn(size, self.dim, generator=torch.Generator().manual_seed(77))
        return x, self.drift * (x @ self.weights).unsqueeze(1)
