import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
IN_MEMORY = 20_000


def external_sort(rows, target):
    with open(target, "w") as sink:
        child = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "sorter.py")],
            stdin=subprocess.PIPE, stdout=sink, text=True,
        )
        for chromosome, position in rows:
            child.stdin.write(f"{chromosome}\t{position}\n")
        child.stdin.flush()
        if child.wait() != 0:
            raise RuntimeError(f"sorter ended with {child.returncode}")
    with open(target) as done:
        for line in done:
            chromosome, position = line.split("\t")
            yield chromosome, int(position)


def sort_variants(rows, rank):
    """Sort variants by place; large regions are sorted outside of this process."""
    if len(rows) <= IN_MEMORY:
        return sorted(rows)
    return list(external_sort(rows, os.path.join(HERE, f"spill-{rank}.tsv")))
