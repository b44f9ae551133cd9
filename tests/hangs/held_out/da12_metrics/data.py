import torch


class Shard:
    """Images of some classes."""

    def __init__(self, rank, classes=5, width=8):
        self.rank = rank
        self.classes = classes
        torch.manual_seed(1)
        self.centers = torch.randn(classes, width)
        self.gen = torch.Generator().manual_seed(60 + rank)

    def batch(self, rows=20):
        labels = torch.arange(rows) % (self.classes - 1)
        noise = 0.3 * torch.randn(rows, self.centers.shape[1], generator=self.gen)
        return self.centers[labels] + noise, labels

    def holdout(self, epoch):
        for part in range(3):
            x, labels = self.batch()
            if self.rank == 3 and epoch == 2 and part == 1:
                labels = labels.clone()
                labels[7] = self.classes - 1
            yield x, labels
