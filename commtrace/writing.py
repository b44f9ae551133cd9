"""Writing a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Another path to write to, in the body, what is at `path` after it; nothing where it raises.

    It is in the same folder, ends alike and is another process's own.
    """
    unfinished = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
