"""Skipping of tests: a rank that skips, and tests that need GPUs."""

from __future__ import annotations

import sys
import unittest
from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def is_skip(error: BaseException) -> bool:
    """True if `error` is a skip of unittest's or pytest's; pytest need not be installed."""
    pytest_outcomes = sys.modules.get("_pytest.outcomes")
    skipped = (unittest.SkipTest, *([pytest_outcomes.Skipped] if pytest_outcomes else []))
    return isinstance(error, skipped)


def raise_if_skipped(errors: Iterable[BaseException | None]) -> None:
    """Raise the first skip among the ranks' errors."""
    for error in errors:
        if error is not None and is_skip(error):
            raise error


def skip_if_lt_x_gpu(num_gpus: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a test to skip if there are fewer than `num_gpus` GPUs."""

    def decorate(test: Callable[P, T]) -> Callable[P, T]:
        @wraps(test)
        def unless_too_few(*args: P.args, **kwargs: P.kwargs) -> T:
            found = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if found < num_gpus:
                raise unittest.SkipTest(f"needs {num_gpus} GPUs, found {found}")
            return test(*args, **kwargs)

        return unless_too_few

    return decorate
