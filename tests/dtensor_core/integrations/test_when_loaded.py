"""A module is patched once, when the program loads it, by every change that waits for it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from dtensor_core.integrations.when_loaded import when_loaded


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that can be loaded and is not yet."""
    tmp_path.joinpath("loaded_later.py").write_text("changes = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "loaded_later", raising=False)
    return "loaded_later"


def test_every_change_is_made_once(name: str) -> None:
    before = list(sys.meta_path)
    for number in range(2):
        when_loaded(name, lambda module, number=number: module.changes.append(number))
    assert sorted(importlib.import_module(name).changes) == [0, 1]
    assert sys.meta_path == before
    when_loaded(name, lambda module: module.changes.append(2))
    assert sorted(importlib.import_module(name).changes) == [0, 1, 2]


def test_a_module_that_was_only_looked_for_is_still_changed(name: str) -> None:
    when_loaded(name, lambda module: module.changes.append("changed"))
    assert importlib.util.find_spec(name) is not None
    assert importlib.import_module(name).changes == ["changed"]


def test_a_module_that_another_finder_finds_is_changed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.find_spec(name)
    monkeypatch.setattr(sys, "path", [])

    class Finder:
        @staticmethod
        def find_spec(fullname: str, path: object = None, target: object = None) -> object:
            return spec if fullname == name else None

    sys.meta_path.append(Finder)  # pyright: ignore[reportArgumentType]
    when_loaded(name, lambda module: module.changes.append("changed"))
    assert importlib.import_module(name).changes == ["changed"]


def test_a_module_that_does_not_exist_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    when_loaded("no_such_module", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module")
