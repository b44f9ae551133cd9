"""Uploads checkpoints in the background. Not a daemon: an upload must not be cut off."""
import io
import queue
import threading

import torch


class Uploader:
    def __init__(self):
        self.queue = queue.Queue()
        self.stored = {}
        self.thread = threading.Thread(target=self._work, name="uploader")
        self.thread.start()

    def _work(self):
        while True:
            item = self.queue.get()
            if item is None:
                return
            name, state = item
            buf = io.BytesIO()
            torch.save(state, buf)
            self.stored[name] = len(buf.getvalue())

    def put(self, name, state):
        self.queue.put((name, {k: v.clone() for k, v in state.items()}))

    def close(self):
        self.queue.put(None)
        self.thread.join()
