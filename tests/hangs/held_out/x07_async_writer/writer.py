import json
import os
import queue
import tempfile
import threading

import torch


class AsyncWriter:
    """Writes shards in the background; one at a time."""

    def __init__(self, rank):
        self.rank = rank
        self.dir = tempfile.mkdtemp(prefix="shards")
        self.busy = threading.Lock()
        self.jobs = queue.Queue()
        self.thread = threading.Thread(target=self._work, name="writer", daemon=True)
        self.thread.start()

    def _work(self):
        while True:
            step, state, meta = self.jobs.get()
            self._write(step, state, meta)
            self.busy.release()

    def _write(self, step, state, meta):
        base = os.path.join(self.dir, f"{step:05d}-{self.rank}")
        torch.save(state, base + ".pt")
        with open(base + ".json", "w") as f:
            json.dump(meta, f)

    def save(self, step, model, meta):
        self.busy.acquire()
        state = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.jobs.put((step, state, dict(meta)))

    def close(self):
        with self.busy:
            pass
