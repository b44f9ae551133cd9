import os
import signal


class Preemption:
    """Set once the scheduler has announced that this node goes away."""

    def __init__(self, signum=signal.SIGUSR1):
        self.requested = False
        signal.signal(signum, self._on_signal)

    def _on_signal(self, signum, frame):
        self.requested = True


def drill(step, rank):
    """Preemption drill of the test cluster: one task gets the scheduler's signal."""
    if step == 7 and rank == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
