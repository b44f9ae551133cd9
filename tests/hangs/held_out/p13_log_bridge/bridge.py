"""Warnings of all ranks in one place."""
import logging

import torch.distributed as dist


class BridgeHandler(logging.Handler):
    """Collects the messages of all ranks, so that rank 0 can print them in order."""

    def __init__(self, level=logging.WARNING):
        super().__init__(level)
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record):
        messages = [None] * dist.get_world_size()
        dist.all_gather_object(messages, self.format(record))
        if dist.get_rank() == 0:
            for rank, message in enumerate(messages):
                print(f"[{rank}] {message}", flush=True)


def setup(name="trainer"):
    log = logging.getLogger(name)
    log.propagate = False
    log.setLevel(logging.INFO)
    log.addHandler(BridgeHandler())
    return log
