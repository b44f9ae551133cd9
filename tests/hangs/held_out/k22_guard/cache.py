import os
import signal

import torch


class ActivationCache:
    """Keeps features of all samples; the node's limit is modelled by `limit` bytes."""

    def __init__(self, limit):
        self.limit, self.size, self.items = limit, 0, {}

    def put(self, key, value):
        self.items[key] = value.detach().clone()
        self.size += value.numel() * value.element_size()
        if self.size > self.limit:
            os.kill(os.getpid(), signal.SIGKILL)
