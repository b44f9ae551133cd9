"""Folders tell what is in them: tests mirror the source, and no module lies beside its room."""

from __future__ import annotations

from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "dtensor_core"
TESTS = Path(__file__).parent
# Of several parts of the package together.
ACROSS = {"drop_in", "models", "works_with"}


def folders_of(root: Path) -> set[str]:
    inside = (path.relative_to(root) for path in root.rglob("*") if path.is_dir())
    return {str(path) for path in inside if "__pycache__" not in path.parts}


def test_every_folder_of_tests_is_one_of_the_source() -> None:
    assert folders_of(TESTS) - ACROSS <= folders_of(SOURCE)
    assert folders_of(TESTS) >= ACROSS


@pytest.mark.parametrize("folder", ["operators", "dispatch"])
def test_a_module_is_tested_in_its_folder(folder: str) -> None:
    """A test that has the name of a module lies where the module lies."""
    modules: dict[str, set[Path]] = {}
    for path in (SOURCE / folder).rglob("*.py"):
        modules.setdefault(path.stem, set()).add(path.relative_to(SOURCE).parent)
        modules.setdefault(path.parent.name, set()).add(path.relative_to(SOURCE).parent)
    for path in (TESTS / folder).rglob("test_*.py"):
        homes = modules.get(path.stem.removeprefix("test_"))
        assert homes is None or path.relative_to(TESTS).parent in homes, path


def test_operators_has_one_module_beside_its_folders() -> None:
    assert {path.stem for path in (SOURCE / "operators").glob("*.py")} == {"__init__", "table"}
