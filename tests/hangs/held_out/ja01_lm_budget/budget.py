import time


class TimeBudget:
    """Wall-clock budget of the job, so that the last checkpoint is written before the queue ends it."""

    def __init__(self, seconds, reserve=0.5):
        self.limit = seconds - reserve
        self.started = time.monotonic()

    def used(self):
        return time.monotonic() - self.started

    def exhausted(self):
        return self.used() > self.limit
