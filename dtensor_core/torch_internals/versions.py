"""Releases of torch that dtensor_core supports."""

from __future__ import annotations

import re

from dtensor_core.errors import four_parts

OLDEST = (2, 13)


def check_version(version: str) -> None:
    """Raise if a release of torch is older than dtensor_core supports.

    Raises:
        ImportError: `version` is older than `OLDEST`.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            four_parts(
                summary=f"cannot import dtensor_core with torch {version}",
                found=f"torch {version}; dtensor_core needs {oldest} or newer",
                why="it stands on parts of torch that older releases do not have",
                hint=f"pip install 'torch>={oldest}'; commtrace alone also records with torch "
                f"{version}",
            )
        )
