"""Stands for the agent of a node."""
import os
import signal
import subprocess
import sys


class NodeAgent:
    def __init__(self, rank):
        self.drains = rank == 1
        self.pid = os.getpid()

    def tick(self, step):
        if self.drains and step == 6:
            subprocess.run([sys.executable, "-S", "-c",
                            f"import os; os.kill({self.pid}, {int(signal.SIGUSR1)})"], check=True)
