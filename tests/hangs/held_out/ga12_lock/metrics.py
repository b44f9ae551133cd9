"""Metrics of a rank, written in the background."""
import json
import threading
import time


class MetricsWriter:
    def __init__(self, stream, capacity=64):
        self.stream = stream
        self.capacity = capacity
        self.rows = []
        self.lock = threading.Lock()
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self.run, name="metrics", daemon=True)
        self.thread.start()

    def add(self, name, value):
        with self.lock:
            self.rows.append((time.time(), name, value))
            if len(self.rows) > self.capacity:
                self.flush()

    def flush(self):
        with self.lock:
            rows, self.rows = self.rows, []
        for when, name, value in rows:
            self.stream.write(json.dumps({"t": when, name: value}) + "\n")

    def run(self):
        while not self.closed.wait(30.0):
            self.flush()

    def close(self):
        self.closed.set()
        self.thread.join()
        self.flush()
