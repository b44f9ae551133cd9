import json
import queue
import threading


class Tracker:
    """Writes records of the run from a thread, so that training does not wait for the disk."""

    def __init__(self, path, depth=32):
        self.records = queue.Queue(maxsize=depth)
        self.path = path
        self.thread = threading.Thread(target=self._drain, name="tracker", daemon=True)
        self.thread.start()

    def _drain(self):
        with open(self.path, "w") as file:
            for record in iter(self.records.get, None):
                file.write(json.dumps(record) + "\n")
                file.flush()

    def log(self, **record):
        self.records.put(record)

    def close(self):
        self.records.put(None)
        self.thread.join()


class NullTracker:
    def log(self, **record):
        pass

    def close(self):
        pass


def make_tracker(rank, path):
    return Tracker(path) if rank == 0 else NullTracker()
