import torch
import torch.distributed as dist


class Packer:
    """Packs documents into rows and counts what did not fit."""

    def __init__(self, row=32):
        self.row = row
        self.dropped = 0
        self.total_dropped = 0

    def fit(self, doc):
        self.dropped += max(0, len(doc) - self.row)
        return doc[: self.row]

    def rows(self, docs):
        self.dropped = 0
        current = []
        for doc in docs:
            doc = self.fit(doc)
            if len(current) + len(doc) > self.row:
                yield torch.tensor(current)
                current = []
            current = current + doc
        if current:
            yield torch.tensor(current)
        count = torch.tensor([self.dropped])
        dist.all_reduce(count)
        self.total_dropped += count.item()
