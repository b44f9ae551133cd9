import threading
import time

import torch


class Member:
    """A member of an ensemble of Lorenz systems; its archive is written by a thread."""

    def __init__(self, rank):
        self.state = torch.tensor([1.0 + 0.1 * rank, 1.0, 20.0])
        self.rank = rank
        self.archive = []
        self.writer = None

    def integrate(self, seconds):
        dt = 0.01
        for _ in range(int(seconds / dt)):
            x, y, z = self.state
            self.state = self.state + dt * torch.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])
            if not torch.isfinite(self.state).all():
                raise FloatingPointError("diverged")

    def nudge(self, mean):
        try:
            self.check(mean)
        except ValueError:
            mean = self.state
        self.state = 0.9 * self.state + 0.1 * mean

    def check(self, mean):
        if (mean - self.state).abs().max() > 25:
            raise ValueError("mean is too far away")

    def store(self, cycle):
        if self.writer:
            self.writer.join()
        self.writer = threading.Thread(target=self._store, args=(cycle, self.state.clone()))
        self.writer.start()

    def _store(self, cycle, state):
        time.sleep(0.05 * self.rank)
        self.archive.append((cycle, state))
