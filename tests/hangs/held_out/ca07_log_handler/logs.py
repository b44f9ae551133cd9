import logging
import sys

import torch.distributed as dist


class GatherHandler(logging.Handler):
    """Collects the messages of all ranks on rank 0, so that there is one log file."""

    def __init__(self, stream=sys.stdout):
        super().__init__(level=logging.INFO)
        self.stream = stream

    def emit(self, record):
        line = self.format(record)
        lines = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(line, lines, dst=0)
        if lines:
            for rank, text in enumerate(lines):
                self.stream.write(f"[{rank}] {text}\n")
            self.stream.flush()


def setup():
    logger = logging.getLogger("job")
    logger.setLevel(logging.INFO)
    handler = GatherHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    return logger
