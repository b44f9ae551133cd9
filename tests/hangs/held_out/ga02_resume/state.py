"""Where a rank is in its training: one small file per rank."""
import json
import os


class Progress:
    def __init__(self, folder, rank):
        self.path = os.path.join(folder, f"progress-{rank}.json")
        self.step = 0
        self.samples = 0

    def load(self):
        if os.path.exists(self.path):
            with open(self.path) as f:
                saved = json.load(f)
            self.step = saved["step"]
            self.samples = saved["samples"]
        return self

    def save(self):
        tmp = self.path + ".tmp"
        with open(tmp, "w") as f:
            json.dump({"step": self.step, "samples": self.samples}, f)
        os.replace(tmp, self.path)

    def advance(self, count):
        self.step += 1
        self.samples += count


class Keeper:
    """Saves each time another `every` samples are through."""

    def __init__(self, progress, every):
        self.progress = progress
        self.every = every
        self.saved = progress.samples

    def maybe_save(self):
        if self.progress.samples - self.saved >= self.every:
            self.progress.save()
            self.saved = self.progress.samples
