import os
import signal


class Maintenance:
    """Stands for the agent of a node, which signals processes before the node is drained."""

    def __init__(self, rank, plan):
        self.due = plan.get(rank)

    def poll(self, step):
        if self.due is not None and step == self.due:
            os.kill(os.getpid(), signal.SIGUSR1)


class Preemption:
    def __init__(self):
        self.requested = False
        signal.signal(signal.SIGUSR1, self._on_signal)

    def _on_signal(self, number, frame):
        print(f"signal {number}: will save and leave", flush=True)
        self.requested = True
