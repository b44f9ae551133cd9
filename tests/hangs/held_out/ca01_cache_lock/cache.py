"""A small disk cache for decoded samples, safe for several worker processes."""
import os
import pathlib
import time

import numpy as np


class DiskCache:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = self.folder / "cache.lock"

    def acquire(self):
        while True:
            try:
                os.close(os.open(self.lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                return
            except FileExistsError:
                time.sleep(0.02)

    def release(self):
        self.lock.unlink()

    def get(self, key, decode):
        path = self.folder / f"{key}.npy"
        if path.exists():
            return np.load(path)
        self.acquire()
        array = decode(key)
        np.save(path, array)
        self.release()
        return array
