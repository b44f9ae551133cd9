"""A backend for torch.compile which tries variants, and takes what is fastest on average over the ranks."""
import time

import torch
import torch.distributed as dist


def _measure(fn, inputs):
    start = time.perf_counter()
    with torch.no_grad():
        fn(*inputs)
    return time.perf_counter() - start


class Autotuner:
    def __init__(self):
        self.compiled = 0

    def variants(self, gm):
        return [gm.forward, gm.__call__]

    def __call__(self, gm, example_inputs):
        self.compiled += 1
        concrete = [torch.randn(8, 4) if not isinstance(i, torch.Tensor) else i for i in example_inputs]
        variants = self.variants(gm)
        times = torch.tensor([_measure(v, concrete) for v in variants])
        parts = [torch.zeros_like(times) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, times)
        return variants[int(torch.stack(parts).mean(0).argmin())]
