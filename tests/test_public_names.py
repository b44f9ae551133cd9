"""Public names: dir() of each public package lists them only, and types have distinct names."""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "commtrace",
    "dtensor_core",
    "dtensor_core.debug",
    "dtensor_core.experimental",
    "dtensor_core.parallel",
    "dtensor_core.testing",
)


@pytest.mark.parametrize("name", PACKAGES)
def test_dir_lists_the_public_names(name: str) -> None:
    package = importlib.import_module(name)
    assert set(dir(package)) - {"__version__"} == set(package.__all__)
    assert all(hasattr(package, each) for each in dir(package))


def type_names(source: str) -> list[str]:
    """Names of the classes and type aliases of a module."""
    tree = ast.parse(source)
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name.lstrip("_")[:1].isupper() and not name.isupper():
                names.append(name)
    return names


def test_each_type_of_commtrace_has_a_name_of_its_own() -> None:
    paths = sorted((ROOT / "commtrace").rglob("*.py"))
    assert paths
    num = Counter(name for path in paths for name in type_names(path.read_text("utf-8")))
    assert {name for name, times in num.items() if times > 1} == set()


def test_types_of_one_name_are_noticed() -> None:
    source = "class A:\n    class _B: ...\nCells = dict[str, int]\nD_E = 1\n"
    assert type_names(source) == ["A", "_B", "Cells"]
