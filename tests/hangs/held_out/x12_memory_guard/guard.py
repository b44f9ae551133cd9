import os
import signal


class Budget:
    """Counts the bytes that caches hold, as a container's limit would; the kernel sends a KILL beyond it."""

    def __init__(self, limit):
        self.limit = limit
        self.used = 0

    def charge(self, tensor):
        self.used += tensor.numel() * tensor.element_size()
        if self.used > self.limit:
            os.kill(os.getpid(), signal.SIGKILL)


class FeatureCache:
    def __init__(self, budget):
        self.budget = budget
        self.items = {}

    def put(self, key, value):
        if key not in self.items:
            self.budget.charge(value)
        self.items[key] = value

    def __len__(self):
        return len(self.items)
