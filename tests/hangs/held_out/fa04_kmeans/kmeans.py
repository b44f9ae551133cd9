import torch
import torch.distributed as dist


class DistributedKMeans:
    def __init__(self, k, dim, rank, world):
        self.k, self.dim, self.rank, self.world = k, dim, rank, world
        self.centroids = torch.zeros(k, dim)
        self.reseeded = 0

    def init_from(self, points):
        if self.rank == 0:
            step = len(points) // self.k
            self.centroids = points[step // 2 :: step][: self.k].clone()
        dist.broadcast(self.centroids, src=0)

    def assign(self, points):
        return torch.cdist(points, self.centroids).argmin(dim=1)

    def local_stats(self, points):
        labels = self.assign(points)
        counts = torch.bincount(labels, minlength=self.k).float()
        sums = torch.zeros(self.k, self.dim).index_add_(0, labels, points)
        return sums, counts

    def reseed(self, counts, points):
        """Moves the centroid of a cluster that lost its points to the farthest point."""
        empty = int((counts == 0).nonzero()[0])
        far = torch.cdist(points, self.centroids).amin(dim=1).argmax()
        candidate = points[far].clone()
        dist.broadcast(candidate, src=0)
        self.centroids[empty] = candidate
        self.reseeded += 1

    def update(self, points):
        sums, counts = self.local_stats(points)
        if (counts == 0).any():
            self.reseed(counts, points)
            sums, counts = self.local_stats(points)
        packed = torch.cat([sums, counts[:, None]], dim=1)
        dist.all_reduce(packed)
        total = packed[:, -1:].clamp(min=1)
        shift = (packed[:, :-1] / total - self.centroids).norm()
        self.centroids = packed[:, :-1] / total
        return float(shift)

    def inertia(self, points):
        value = torch.cdist(points, self.centroids).amin(dim=1).pow(2).sum().reshape(1)
        dist.reduce(value, dst=0)
        return float(value)
