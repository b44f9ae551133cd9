import json
import pathlib
import queue
import threading


class MetricWriter:
    """Writes metrics in the background, so that a slow disk does not slow down training."""

    def __init__(self, folder, rank, names):
        self.path = pathlib.Path(folder) / f"metrics-{rank}.jsonl"
        self.columns = {name: index for index, name in enumerate(names)}
        self.queue = queue.Queue(maxsize=4)
        self.thread = threading.Thread(target=self._run, name="metric-writer", daemon=True)
        self.thread.start()

    def _run(self):
        with self.path.open("w") as file:
            while True:
                item = self.queue.get()
                if item is None:
                    return
                row = [None] * len(self.columns)
                for name, value in item.items():
                    row[self.columns[name]] = value
                file.write(json.dumps(row) + "\n")

    def write(self, **values):
        self.queue.put(values)

    def close(self):
        self.queue.put(None)
        self.thread.join()
