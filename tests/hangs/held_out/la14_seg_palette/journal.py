import json
import queue
import threading
import time


class Journal(threading.Thread):
    """Writes records of the training to a file once a second."""

    def __init__(self, path):
        super().__init__(name="journal")
        self.path = path
        self.records = queue.SimpleQueue()
        self.closing = threading.Event()

    def add(self, **values):
        self.records.put(dict(values, time=time.time()))

    def flush(self):
        with open(self.path, "a") as out:
            while not self.records.empty():
                out.write(json.dumps(self.records.get()) + "\n")

    def run(self):
        while not self.closing.wait(1.0):
            self.flush()
        self.flush()

    def close(self):
        self.closing.set()
        self.join()
