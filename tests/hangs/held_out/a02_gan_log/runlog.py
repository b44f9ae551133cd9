import logging

import torch
import torch.distributed as dist


def get_logger(rank):
    log = logging.getLogger("gan")
    log.setLevel(logging.DEBUG if rank == 0 else logging.WARNING)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"[{rank}] %(levelname)s %(message)s"))
    log.addHandler(handler)
    return log


def global_mean(value):
    parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.tensor([float(value)]))
    return torch.cat(parts).mean().item()


class Meter:
    """Sums up losses of steps and logs them now and then."""

    def __init__(self, log, every):
        self.log = log
        self.every = every
        self.d, self.g = [], []

    def add(self, d_loss, g_loss):
        self.d.append(d_loss)
        self.g.append(g_loss)

    def flush(self, step):
        if len(self.d) < self.every:
            return
        d_loss, g_loss = sum(self.d) / len(self.d), sum(self.g) / len(self.g)
        self.d, self.g = [], []
        if g_loss > 50:
            self.log.warning("generator diverges at %d", step)
        if self.log.isEnabledFor(logging.INFO):
            self.log.info("step %d d %.4f g %.4f", step, global_mean(d_loss), global_mean(g_loss))
