import functools

import torch.distributed as dist


def main_process_only(fn):
    """Runs a method on rank 0, returns None elsewhere."""

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        if dist.get_rank() != 0:
            return None
        return fn(*args, **kwargs)

    return wrapper


@main_process_only
def log(*args):
    print(*args, flush=True)
