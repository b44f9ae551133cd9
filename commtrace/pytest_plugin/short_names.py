"""Names of source files relative to the current folder, for reports of failures."""

from __future__ import annotations

import os


def short(path: str) -> str:
    """Return a path relative to the current folder, if it is below it."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith(os.pardir) else relative
