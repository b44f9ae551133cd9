"""A function is called once a module has been loaded, by whatever imports it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from commtrace.when_loaded import when_loaded

NAME = "module_for_test_when_loaded"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{NAME}.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    importlib.invalidate_caches()


def test_a_module_that_is_imported_later_has_run_when_the_function_is_called() -> None:
    values: list[int] = []
    before = list(sys.meta_path)
    when_loaded(NAME, lambda: values.append(sys.modules[NAME].VALUE))
    assert values == []
    importlib.import_module(NAME)
    assert values == [7]
    assert sys.meta_path == before


def test_of_a_module_that_is_loaded_the_function_is_called_at_once() -> None:
    importlib.import_module(NAME)
    calls: list[str] = []
    when_loaded(NAME, lambda: calls.append("called"))
    assert calls == ["called"]


def test_waiting_can_be_stopped() -> None:
    calls: list[str] = []
    stop = when_loaded(NAME, lambda: calls.append("called"))
    stop()
    stop()
    importlib.import_module(NAME)
    assert calls == []


def test_several_wait_for_one_module() -> None:
    calls: list[int] = []
    when_loaded(NAME, lambda: calls.append(1))
    when_loaded(NAME, lambda: calls.append(2))
    importlib.import_module(NAME)
    assert sorted(calls) == [1, 2]
