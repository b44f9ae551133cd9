"""Without the library of a trainer its module is an error in four parts, also an ImportError."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from commtrace.errors import MissingLibraryError
from commtrace.integrations.libraries import library

MODULES = {
    "transformers": ("transformers", "transformers"),
    "lightning": ("lightning.pytorch or pytorch_lightning", "lightning"),
    "accelerate": ("accelerate.tracking", "accelerate"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    packages, install = MODULES[name]
    for package in packages.split(" or "):
        for each in (package, package.partition(".")[0]):
            monkeypatch.setitem(sys.modules, each, None)  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, f"commtrace.integrations.{name}", raising=False)
    with pytest.raises(ImportError) as caught:
        importlib.import_module(f"commtrace.integrations.{name}")
    assert isinstance(caught.value, MissingLibraryError)
    assert str(caught.value) == (
        f"cannot use commtrace.integrations.{name}\n"
        f"  found: no package {packages} for {sys.executable}\n"
        "  why: its classes derive from that package's\n"
        f"  try: pip install {install}"
    )


def test_the_package_that_the_program_has_loaded_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    assert library("it", "wave", "json", install="it").__name__ == "json"
    assert "wave" not in sys.modules
    assert library("it", "not_there", "wave", install="it").__name__ == "wave"


def test_an_error_inside_of_a_library_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_library.py").write_text("import not_there_either")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="not_there_either"):
        library("it", "broken_library", install="it")
