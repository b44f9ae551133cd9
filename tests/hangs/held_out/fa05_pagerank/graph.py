import torch


class Partition:
    """Rows of the link matrix: the pages that this rank owns."""

    def __init__(self, rank, world, pages):
        gen = torch.Generator().manual_seed(7)
        links = (torch.rand(pages, pages, generator=gen) < 0.15).float()
        links.fill_diagonal_(0)
        per = pages // world
        last = pages - per
        links[last:] = 0  # the pages of the last partition are linked from nowhere
        out = links.sum(dim=0).clamp(min=1)
        self.start, self.end = rank * per, (rank + 1) * per
        self.matrix = (links / out)[self.start : self.end]
        self.pages = pages

    def new_scores(self, scores, damping):
        return (1 - damping) / self.pages + damping * (self.matrix @ scores)
