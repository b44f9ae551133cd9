"""A logging handler that shows each record with what the other ranks had to say."""
import logging

import torch.distributed as dist


class GatherHandler(logging.Handler):
    def emit(self, record):
        text = self.format(record)
        texts = [None] * dist.get_world_size()
        dist.all_gather_object(texts, text)
        if dist.get_rank() == 0:
            for rank, line in enumerate(texts):
                print(f"[{rank}] {line}", flush=True)


def get_logger(name):
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    handler = GatherHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    return logger
