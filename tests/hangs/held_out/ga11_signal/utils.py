import os
import signal


class StopRequest:
    """SIGUSR1 asks the job to save and end, as the scheduler does before it preempts."""

    def __init__(self):
        self.asked = False
        signal.signal(signal.SIGUSR1, self.handle)

    def handle(self, signum, frame):
        self.asked = True


class ScratchQuota:
    """Samples are spilled to scratch; over the quota the job is asked to end."""

    def __init__(self, limit):
        self.limit = limit
        self.used = 0

    def spill(self, tensor):
        self.used += tensor.numel() * tensor.element_size()
        if self.used > self.limit:
            os.kill(os.getpid(), signal.SIGUSR1)
