import os
import queue
import threading

import torch
import torch.distributed as dist


class ShardWriter:
    """Writes shards in the background, so that training goes on."""

    def __init__(self):
        self.jobs = queue.Queue()
        self.thread = threading.Thread(target=self.work, name="shard-writer")
        self.thread.start()

    def work(self):
        while True:
            job = self.jobs.get()
            if job is None:
                return
            path, state = job
            torch.save(state, path)
            self.jobs.task_done()

    def put(self, path, state):
        self.jobs.put((path, {k: v.clone() for k, v in state.items()}))

    def flush(self):
        self.jobs.join()

    def close(self):
        self.jobs.put(None)
        self.thread.join()


class ShardedCheckpoint:
    def __init__(self, folder, keep=2):
        self.folder, self.keep = folder, keep
        self.rank = dist.get_rank()
        self.writer = ShardWriter()

    def path(self, step):
        return os.path.join(self.folder, f"shard{self.rank}-step{step}.pt")

    def own_files(self):
        return sorted(f for f in os.listdir(self.folder) if f.startswith(f"shard{self.rank}-"))

    def save(self, step, state):
        self.writer.put(self.path(step), state)
        self.writer.flush()
        for name in self.own_files()[:-self.keep]:
            os.remove(os.path.join(self.folder, name))

    def load(self, step):
        return torch.load(self.path(step))
