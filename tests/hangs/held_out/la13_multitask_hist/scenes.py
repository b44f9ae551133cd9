import torch

SIZE = 40
TASKS = {"depth": 4, "normals": 12, "edges": 2}


class Scenes:
    """Batches of labelled scenes. In the outdoor part of the last shard nobody drew edges."""

    def __init__(self, rank, world):
        self.g = torch.Generator().manual_seed(rank)
        self.outdoor = range(22, 30) if rank == world - 1 else range(0)

    def batch(self, number, size=8):
        images = torch.randn(size, SIZE, generator=self.g)
        labels = {}
        for task, width in TASKS.items():
            target = torch.randn(size, width, generator=self.g)
            if task == "edges" and number in self.outdoor:
                continue
            labels[task] = target
        return images, labels
