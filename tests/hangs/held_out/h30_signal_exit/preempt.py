"""The end of an allocation arrives as a signal."""
import signal
import sys
import time


class Preemption:
    def __init__(self, seconds):
        self.requested = False
        self.since = None
        signal.signal(signal.SIGALRM, self._notice)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def _notice(self, signum, frame):
        self.requested = True
        self.since = time.time()


class Saver:
    def __init__(self, rank):
        self.rank = rank
        self.saved = {}

    def __call__(self, state, step):
        self.saved[step] = {k: v.clone() for k, v in state.items()}

    def finish(self, state, step):
        self(state, step)
        print(f"[{self.rank}] allocation ends, saved step {step}", flush=True)
        sys.exit(0)
