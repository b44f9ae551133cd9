import json
import os
import tempfile
import threading


class MetricBuffer:
    def __init__(self, rank, limit):
        self.lock = threading.Lock()
        self.rows, self.limit = [], limit
        self.path = os.path.join(tempfile.gettempdir(), f"metrics-{os.environ['MASTER_PORT']}-{rank}.jsonl")

    def add(self, **row):
        with self.lock:
            self.rows.append(row)
            if len(self.rows) >= self.limit:
                self.flush()

    def flush(self):
        with self.lock:
            rows, self.rows = self.rows, []
        with open(self.path, "a") as f:
            for row in rows:
                f.write(json.dumps(row) + "\n")
