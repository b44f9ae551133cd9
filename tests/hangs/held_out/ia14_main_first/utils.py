import contextlib

import torch.distributed as dist


def is_main():
    return dist.get_rank() == 0


@contextlib.contextmanager
def main_first():
    """The body runs on rank 0 before it runs on the others."""
    if not is_main():
        dist.barrier()
    yield
    if is_main():
        dist.barrier()
