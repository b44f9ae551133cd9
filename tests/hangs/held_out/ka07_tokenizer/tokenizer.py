import subprocess
import sys
from pathlib import Path

import torch


class Tokenizer:
    """The reference tokenizer of the vendor, which runs as a program of its own."""

    def __init__(self, length):
        self.length = length
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "tokenizer_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def encode(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        ids = [int(i) for i in self.process.stdout.readline().split()]
        ids = ids[:self.length]
        return ids + [0] * (self.length - len(ids))

    def encode_batch(self, texts):
        return torch.tensor([self.encode(text) for text in texts])

    def close(self):
        _, warnings = self.process.communicate(timeout=10)
        return self.process.returncode, len(warnings.splitlines())
