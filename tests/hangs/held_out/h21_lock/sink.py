"""Metrics are collected by the training loop and formatted by a thread."""
import threading
import time


class Sink:
    UNITS = {"loss": "", "lr": "", "ms": "ms"}

    def __init__(self, interval=0.2):
        self.lock = threading.Lock()
        self.pending = []
        self.lines = []
        self.interval = interval
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._loop, daemon=True)
        self.thread.start()

    def add(self, step, **values):
        self.lock.acquire()
        self.pending.append((step, values))
        self.lock.release()

    def _format(self, step, values):
        cells = [f"{k}={v:.3f}{self.UNITS[k]}" for k, v in values.items()]
        return f"{step}: " + " ".join(cells)

    def _loop(self):
        while not self.closed.wait(self.interval):
            self.lock.acquire()
            for step, values in self.pending:
                self.lines.append(self._format(step, values))
            self.pending.clear()
            self.lock.release()

    def close(self):
        self.closed.set()
        self.thread.join()
        return self.lines
