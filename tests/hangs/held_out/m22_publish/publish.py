import os
import subprocess
import sys
import tempfile

import torch

TOOL = """
import sys, hashlib
data = open(sys.argv[1], "rb").read()
for i in range(0, len(data), 8):
    if "-v" in sys.argv:
        print(f"chunk {i:08d} sha256 {hashlib.sha256(data[i:i + 8]).hexdigest()}")
print("published", hashlib.sha256(data).hexdigest())
"""


class Publisher:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="publish_")

    def _tool(self, path, verbose):
        cmd = [sys.executable, "-S", "-c", TOOL, path] + (["-v"] if verbose else [])
        proc = subprocess.Popen(cmd, stdout=subprocess.PIPE, text=True)
        code = proc.wait()
        return code, proc.stdout.read().splitlines()[-1]

    def publish(self, state, step, verbose):
        path = os.path.join(self.folder, f"ema{step}.pt")
        torch.save(state, path)
        code, line = self._tool(path, verbose)
        print(f"step {step}: {line[:30]} ({code})", flush=True)
