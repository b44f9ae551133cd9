import os
import signal


class Warning_:
    """Set by SIGUSR1, which the scheduler sends some time before it takes a node back."""

    def __init__(self):
        self.seen = False
        signal.signal(signal.SIGUSR1, self._on_signal)

    def _on_signal(self, signum, frame):
        self.seen = True


class NodeAgent:
    """Stand-in of the node's agent: node 1 is taken back after 25 steps."""

    def __init__(self, node):
        self.node = node

    def tick(self, step):
        if self.node == 1 and step == 25:
            os.kill(os.getpid(), signal.SIGUSR1)
