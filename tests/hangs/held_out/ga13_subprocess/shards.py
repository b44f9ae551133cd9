"""Shards are unpacked by a helper process, which prints one line per record."""
import subprocess
import sys

HELPER = """
import random, sys
seed, count = int(sys.argv[1]), int(sys.argv[2])
r = random.Random(seed)
for i in range(count):
    print(i, *[f"{r.gauss(0, 1):.5f}" for _ in range(8)])
"""


class ShardReader:
    def __init__(self, rank, counts):
        self.rank = rank
        self.counts = counts
        self.opened = 0

    def unpack(self, index):
        seed = index * 10 + self.rank
        count = self.counts[index]
        return subprocess.Popen([sys.executable, "-S", "-c", HELPER, str(seed), str(count)],
                                stdout=subprocess.PIPE, text=True)

    def read(self, index):
        helper = self.unpack(index)
        if helper.wait() != 0:
            raise RuntimeError(f"shard {index} of rank {self.rank} is damaged")
        self.opened += 1
        rows = []
        for line in helper.stdout:
            rows.append([float(v) for v in line.split()[1:]])
        helper.stdout.close()
        return rows
