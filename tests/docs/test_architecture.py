"""docs/architecture.md shows the layers of the import contracts."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def contracts() -> list[dict[str, Any]]:
    """The import contracts of pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return settings["tool"]["importlinter"]["contracts"]


def layers_of(package: str) -> list[set[str]]:
    """Layers of a package's contract, from the top, without optional modules that do not exist."""
    (contract,) = (found for found in contracts() if found.get("containers") == [package])
    layers = [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]
    home = ROOT / package.replace(".", "/")
    present = [
        {name for name in layer if (home / name).is_dir() or (home / f"{name}.py").is_file()}
        for layer in layers
    ]
    return [layer for layer in present if layer]


def documented_layers(text: str, highest: str) -> list[set[str]]:
    """Layers of the diagram whose first layer has `highest`."""
    section = text.partition("## Who may import whom")[2]
    for diagram in section.partition("```")[2].partition("```")[0].split("\n\n"):
        layers = [set(re.findall(r"\w+", layer)) for layer in diagram.split("->")]
        if highest in layers[0]:
            return layers
    raise AssertionError(f"no diagram begins with {highest}")


@pytest.mark.parametrize(
    ("package", "highest"),
    [
        ("commtrace", "commtrace_cli"),
        ("commtrace.launching", "launcher"),
        ("commtrace.recorder", "listening"),
        ("commtrace.importers", "logs"),
        ("commtrace.tracefile", "opening"),
        ("dtensor_core", "_utils"),
        ("dtensor_core.dispatch", "dispatcher"),
    ],
)
def test_the_diagrams_are_the_contracts(package: str, highest: str) -> None:
    diagram = documented_layers((ROOT / "docs" / "architecture.md").read_text(), highest)
    outside = [layer for layer in diagram if layer == {"commtrace_cli"}]  # a package of its own
    assert diagram == outside + layers_of(package)


def documented_names(package: str) -> set[str]:
    """Names in the first level below a package in the tree of folders."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    tree = text.partition("## Folders")[2].partition("```")[2].partition("```")[0]
    own = tree.partition(f"\n{package}/\n")[2]
    own = re.split(r"\n(?=\S)", own)[0]
    names = re.findall(r"^  (?! )(.+?)(?:  +|$)", own, re.M)
    return {name.strip("/ ") for line in names for name in line.split(",")}


@pytest.mark.parametrize("package", ["commtrace", "dtensor_core"])
def test_the_tree_has_every_file_and_folder_of_a_package(package: str) -> None:
    home = ROOT / package
    files = {path.stem for path in home.glob("*.py")} - {"__init__"}
    folders = {path.parent.name for path in home.glob("*/__init__.py")}
    assert documented_names(package) == files | folders
