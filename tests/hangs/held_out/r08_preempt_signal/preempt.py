import os
import signal
import threading


class PreemptionGuard:
    """The scheduler announces the end of a node's lease by SIGUSR1."""

    def __init__(self):
        self.requested = False
        self.previous = signal.signal(signal.SIGUSR1, self.on_signal)

    def on_signal(self, number, frame):
        self.requested = True

    def close(self):
        signal.signal(signal.SIGUSR1, self.previous)


class FakeScheduler:
    """Stands in for the scheduler's agent of one node."""

    def __init__(self, preempted, at_step):
        self.preempted = preempted
        self.at_step = at_step

    def tick(self, rank, step):
        if rank == self.preempted and step == self.at_step:
            thread = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGUSR1))
            thread.start()
            thread.join()
