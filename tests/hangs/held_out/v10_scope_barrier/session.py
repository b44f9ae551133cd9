import contextlib
import time

import torch.distributed as dist


@contextlib.contextmanager
def session(name):
    """Sets the process group up, and takes it down when all ranks are done."""
    dist.init_process_group("gloo")
    started = time.time()
    try:
        yield dist.get_rank()
    finally:
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"{name}: {time.time() - started:.1f} s", flush=True)
        dist.destroy_process_group()
