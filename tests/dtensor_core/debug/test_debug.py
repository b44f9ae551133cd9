"""Public names of dtensor_core.debug."""

from __future__ import annotations

import sys

import pytest

import commtrace
from dtensor_core import debug


def test_the_mode_is_that_of_commtrace() -> None:
    assert debug.CommDebugMode is commtrace.CommDebugMode
    assert set(debug.__all__) <= set(dir(debug))


def test_without_commtrace_the_error_names_the_missing_package(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "commtrace", None)
    with pytest.raises(ImportError, match="CommDebugMode is implemented by commtrace"):
        debug.CommDebugMode  # noqa: B018


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        debug.nothing  # noqa: B018
