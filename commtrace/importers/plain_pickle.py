"""Reads a pickle that holds nothing but plain values, and refuses any other.

A pickle is a program: it may name any function and have it called while it is read. A flight
recorder's dump needs none. Here every name is refused before anything is imported or called, so
that dictionaries, lists, tuples, strings, numbers, flags and None are all that can come out.
"""

from __future__ import annotations

import io
import pickle
from typing import Any


class ForbiddenNameError(Exception):
    """A pickle named something to import; `name` says what."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class BrokenPickleError(Exception):
    """The bytes are no pickle, or one that ends too early."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise ForbiddenNameError(f"{module_name}.{global_name}")

    def persistent_load(self, pid: Any, /) -> Any:
        raise ForbiddenNameError(f"persistent object {pid!r}")


def load_plain(data: bytes) -> Any:
    """What the pickle holds.

    Raises ForbiddenNameError where it asks for anything beyond plain values, BrokenPickleError
    where it cannot be read.
    """
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except ForbiddenNameError:
        raise
    except Exception as error:  # whatever broken bytes make of the machine that reads them
        raise BrokenPickleError(f"{type(error).__name__}: {error}") from error
