import os
import signal


class MemoryGuard:
    """Kills the process before the node's memory is used up, as the kernel would."""

    def __init__(self, budget):
        self.budget = budget
        self.used = 0

    def account(self, tensor):
        self.used += tensor.numel() * tensor.element_size()
        if self.used > self.budget:
            os.kill(os.getpid(), signal.SIGKILL)
        return tensor
