import os
import queue
import tempfile
import threading

import torch


class SnapshotWriter:
    """Each rank writes every world-th snapshot. At most `keep` files stay on the disk."""

    def __init__(self, rank, world, keep):
        self.rank, self.world, self.keep = rank, world, keep
        self.folder = tempfile.mkdtemp(prefix=f"swa{rank}_")
        self.lock = threading.Lock()
        self.jobs = queue.Queue()
        self.log, self.files = [], []
        self.turn = 0
        self.thread = threading.Thread(target=self._work, daemon=True, name="snapshots")
        self.thread.start()

    def note(self, step, value):
        with self.lock:
            self.log.append((step, value))

    def submit(self, step, state):
        if self.turn % self.world == self.rank:
            self.jobs.put((step, state))
        self.turn += 1

    def _trim(self):
        if len(self.files) <= self.keep:
            return
        with self.lock:
            old = self.files.pop(0)
            self.log.append((old, "removed"))
        os.remove(os.path.join(self.folder, f"{old}.pt"))

    def _work(self):
        while True:
            job = self.jobs.get()
            if job is None:
                return
            step, state = job
            with self.lock:
                torch.save(state, os.path.join(self.folder, f"{step}.pt"))
                self.files.append(step)
                self._trim()

    def close(self):
        self.jobs.put(None)
        self.thread.join()
