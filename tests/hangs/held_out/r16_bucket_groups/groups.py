import torch.distributed as dist


class ReductionPlan:
    """Dense and embedding gradients are reduced in groups of their own, so that they overlap."""

    def __init__(self):
        self.groups = {"dense": dist.new_group(), "embedding": dist.new_group()}
        self.order = list(self.groups)
        self.costs = {}

    def measure(self, kind, size, sparse_rows):
        # what has more data goes first
        self.costs[kind] = size if kind == "dense" else sparse_rows

    def replan(self):
        self.order = sorted(self.order, key=self.costs.get, reverse=True)

    def reduce(self, gradients):
        for kind in self.order:
            for gradient in gradients[kind]:
                dist.all_reduce(gradient, group=self.groups[kind])
                gradient /= dist.get_world_size()
