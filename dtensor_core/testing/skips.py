"""Skipping, seen from the outside of a run: a rank that skips skips the whole test."""

from __future__ import annotations

import unittest
from collections.abc import Iterable


def is_skip(error: BaseException) -> bool:
    """Whether `error` is unittest's or pytest's way to skip (pytest need not be installed)."""
    names = {f"{kind.__module__}.{kind.__name__}" for kind in type(error).__mro__}
    return isinstance(error, unittest.SkipTest) or "_pytest.outcomes.Skipped" in names


def raise_if_skipped(errors: Iterable[BaseException | None]) -> None:
    """Raise the first skip among what the ranks raised."""
    for error in errors:
        if error is not None and is_skip(error):
            raise error
