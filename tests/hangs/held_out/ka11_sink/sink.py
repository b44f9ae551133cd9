import json
import queue
import threading
from pathlib import Path


class NullSink:
    def write(self, record):
        pass

    def flush(self):
        pass


class JsonSink:
    """Writes records in a thread of its own, so that a slow disk does not slow the training."""

    def __init__(self, path):
        self.path = Path(path)
        self.path.parent.mkdir(exist_ok=True)
        self.queue = queue.Queue()
        self.thread = threading.Thread(target=self.work, name="sink", daemon=True)
        self.thread.start()

    def work(self):
        with self.path.open("w") as stream:
            while True:
                record = self.queue.get()
                stream.write(json.dumps(record) + "\n")
                self.queue.task_done()

    def write(self, record):
        self.queue.put(record)

    def flush(self):
        self.queue.join()
