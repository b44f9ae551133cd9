"""Releases of torch that dtensor_core supports."""

from __future__ import annotations

import re

OLDEST = (2, 13)


def check_version(version: str) -> None:
    """Raise if a release of torch is older than dtensor_core supports.

    Raises:
        ImportError: `version` is older than `OLDEST`.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        # Not with `errors.four_parts`, since this module stands on no other.
        raise ImportError(
            f"cannot import dtensor_core with torch {version}\n"
            f"  Found: torch {version}; dtensor_core needs {oldest} or newer\n"
            "  Why: it stands on parts of torch that older releases do not have\n"
            f"  Try: pip install 'torch>={oldest}'; commtrace alone also records with torch "
            f"{version}"
        )
