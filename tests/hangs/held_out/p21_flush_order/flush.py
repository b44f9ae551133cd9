"""Gradients collected in two buckets, reduced when the backward is through."""
import torch


class Bucket:
    def __init__(self, name, reduce):
        self.name = name
        self.reduce = reduce
        self.parameters = []

    def pending(self):
        """Number of gradients that aren't zero: rows of embeddings that were not used need no hurry."""
        return sum(int(p.grad.count_nonzero()) for p in self.parameters)

    def flush(self):
        flat = torch.cat([p.grad.flatten() for p in self.parameters])
        flat = self.reduce(flat)
        for p, part in zip(self.parameters, flat.split([p.numel() for p in self.parameters])):
            p.grad.copy_(part.view_as(p))


class Flusher:
    def __init__(self, *buckets):
        self.buckets = buckets

    def __call__(self):
        # the fuller one first, it takes longer
        for bucket in sorted(self.buckets, key=lambda bucket: -bucket.pending()):
            bucket.flush()
