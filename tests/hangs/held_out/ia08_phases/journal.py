import tempfile
import threading


class Journal:
    """Rows of statistics, written out in bulk."""

    def __init__(self, limit):
        self.limit = limit
        self.rows = []
        self.lock = threading.Lock()
        self.file = tempfile.TemporaryFile("w+")

    def flush(self):
        with self.lock:
            self.file.writelines(self.rows)
            self.rows.clear()

    def add(self, row):
        with self.lock:
            self.rows.append(row + "\n")
            if len(self.rows) > self.limit:
                self.flush()
