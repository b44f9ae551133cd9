import torch
import torch.distributed as dist


class EntropyFloor:
    def __init__(self, floor):
        self.floor = floor

    def tripped(self, report):
        return report["entropy"] < self.floor


class FlatReturns:
    """All episodes had the same return: there is nothing to learn from."""

    def tripped(self, report):
        returns = report["returns"]
        return bool((returns == returns[0]).all())


class GradientSpread:
    """Ranks disagree about the size of the gradient."""

    def __init__(self, ratio):
        self.ratio = ratio

    def tripped(self, report):
        norm = torch.tensor([report["grad_norm"]])
        norms = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(norms, norm)
        norms = torch.cat(norms)
        return bool(norms.max() > self.ratio * norms.min().clamp(min=1e-8))


def default_guards():
    return [EntropyFloor(0.02), FlatReturns(), GradientSpread(1e6)]
