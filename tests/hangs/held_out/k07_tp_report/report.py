import functools

import torch.distributed as dist
from torch.distributed.tensor import DTensor


def main_rank_only(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        if dist.get_rank() == 0:
            return fn(*args, **kwargs)
        return None

    return wrapper


def norm_of(p):
    full = p.full_tensor() if isinstance(p, DTensor) else p
    return full.norm().item()


@main_rank_only
def weight_report(model, step, loss):
    norms = {name: norm_of(p.detach()) for name, p in model.named_parameters()}
    worst = max(norms, key=norms.get)
    print(f"step {step} loss {loss:.4f} largest {worst} {norms[worst]:.3f}", flush=True)
