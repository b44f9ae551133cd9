import pathlib
import subprocess
import sys

import numpy as np

SCRIPT = pathlib.Path(__file__).with_name("report.py")


class Reporter:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.means = []

    def run(self, residuals):
        path = self.folder / "residuals.npy"
        np.save(path, residuals.numpy())
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(path)], stdout=subprocess.PIPE, text=True
        )
        if process.wait() != 0:
            raise RuntimeError("the report failed")
        lines = process.stdout.read().splitlines()
        self.means.append(float(lines[-1].split()[1]))
        return self.means[-1]
