import os
import threading
from concurrent.futures import ThreadPoolExecutor

import torch


class PreviewWriter:
    """Writes sample grids in the background, at most `pending` at a time."""

    def __init__(self, folder, rank, pending=3):
        self.folder = folder
        self.rank = rank
        self.slots = threading.BoundedSemaphore(pending)
        self.pool = ThreadPoolExecutor(max_workers=1)
        os.makedirs(folder, exist_ok=True)

    def submit(self, step, samples):
        self.slots.acquire()
        self.pool.submit(self._write, step, samples.detach().clone())

    def _write(self, step, samples):
        pixels = ((samples + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
        if len(pixels.flatten(1).unique(dim=0)) == 1:
            return
        rows = [torch.cat(list(row), dim=1) for row in pixels.view(2, -1, *pixels.shape[1:])]
        grid = torch.cat(rows, dim=0)
        name = os.path.join(self.folder, f"rank{self.rank}-{step:05d}.pgm")
        with open(name, "wb") as out:
            out.write(b"P5 %d %d 255\n" % (grid.shape[1], grid.shape[0]))
            out.write(grid.numpy().tobytes())
        self.slots.release()

    def close(self):
        self.pool.shutdown(wait=True)
