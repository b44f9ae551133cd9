import json
import os
import tempfile
import threading


class EventLog:
    """Buffered events of a rank, safe to use from several threads."""

    def __init__(self, rank, capacity=20):
        self.capacity = capacity
        self.lock = threading.Lock()
        self.buffer = []
        self.file = os.path.join(tempfile.mkdtemp(prefix=f"events{rank}_"), "events.jsonl")

    def flush(self):
        with self.lock:
            rows, self.buffer = self.buffer, []
        with open(self.file, "a") as f:
            for row in rows:
                f.write(json.dumps(row) + "\n")

    def add(self, **row):
        with self.lock:
            self.buffer.append(row)
            if len(self.buffer) >= self.capacity:
                self.flush()


class Flusher:
    """Writes the events from time to time."""

    def __init__(self, log, seconds=120):
        self.log = log
        self.seconds = seconds
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, name="flusher", daemon=True)
        self.thread.start()

    def run(self):
        while not self.stop.wait(self.seconds):
            self.log.flush()

    def close(self):
        self.stop.set()
        self.thread.join()
        self.log.flush()
