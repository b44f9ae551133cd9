import threading

import torch


class FeatureCache:
    """Keeps features of the frozen backbone; old ones are dropped when it gets large."""

    def __init__(self, limit_bytes):
        self.limit = limit_bytes
        self._lock = threading.Lock()
        self._items = {}
        self.bytes = 0
        self.dropped = 0

    @staticmethod
    def size_of(t):
        return t.numel() * t.element_size()

    def get(self, key):
        with self._lock:
            return self._items.get(key)

    def put(self, key, value):
        with self._lock:
            if key in self._items:
                return
            self._items[key] = value
            self.bytes += self.size_of(value)
            if self.bytes > self.limit:
                self.cleanup()

    def cleanup(self, keep=0.5):
        """Drops the oldest items; also called by the trainer between epochs."""
        with self._lock:
            for key in list(self._items):
                if self.bytes <= keep * self.limit:
                    break
                self.bytes -= self.size_of(self._items.pop(key))
                self.dropped += 1

    def report(self):
        with self._lock:
            return torch.tensor([float(self.bytes), float(self.dropped)])
