import queue
import threading

import torch
import torch.distributed as dist


class MetricsThread(threading.Thread):
    """Reduces the metrics of all ranks beside the training, in a group of its own."""

    def __init__(self, group):
        super().__init__(name="metrics", daemon=True)
        self.group = group
        self.inbox = queue.Queue()
        self.history = []

    def submit(self, metrics):
        self.inbox.put(metrics)

    def flush(self):
        self.inbox.join()
        return self.history

    def vector(self, metrics):
        recall = metrics["hits"] / metrics["positives"]
        return torch.tensor([metrics["loss"], recall, 1.0])

    def run(self):
        while True:
            metrics = self.inbox.get()
            if metrics is None:
                return
            vec = self.vector(metrics)
            dist.all_reduce(vec, group=self.group)
            self.history.append((vec / vec[-1]).tolist())
            self.inbox.task_done()
