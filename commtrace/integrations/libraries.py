"""Libraries of trainers, or the error that one is missing."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from commtrace.errors import MissingLibraryError


def library(purpose: str, *names: str, install: str) -> ModuleType:
    """Return the first of these modules that the program has loaded, or else that is installed.

    Raises:
        MissingLibraryError: none of them is installed.
    """
    for name in sorted(names, key=lambda each: each not in sys.modules):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
    raise MissingLibraryError(
        f"cannot use {purpose}",
        found=f"no package {' or '.join(names)} for {sys.executable}",
        why="its classes derive from that package's",
        attempt=f"pip install {install}",
    )
