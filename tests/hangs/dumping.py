"""Run a program whose calls gloo's flight recorder keeps, and write its dump after some time.

python -m tests.hangs.dumping 20 FOLDER/rank0 train.py
"""

from __future__ import annotations

import runpy
import sys
import threading
from pathlib import Path

from torch import _C as native


def write_dump(path: Path) -> None:
    """Write the dump of this rank, whole or not at all."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(native._distributed_c10d._dump_fr_trace())  # pyright: ignore
    unfinished.rename(path)


if __name__ == "__main__":
    seconds, path, program = sys.argv[1:4]
    timer = threading.Timer(float(seconds), write_dump, [Path(path)])
    timer.daemon = True
    timer.start()
    sys.argv = sys.argv[3:]
    sys.path[0] = str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")
