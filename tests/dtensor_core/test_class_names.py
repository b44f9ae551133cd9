"""A class name or type alias of dtensor_core has a single definition."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "dtensor_core"


def definitions(sources: dict[str, str]) -> dict[str, list[str]]:
    """Files that define each name of a class or type alias at the top level, names with several."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, source in sources.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.Name):
                names = [each.id for each in node.targets if isinstance(each, ast.Name)]
                found[names[0] if names else ""].append(path)
    is_class = {name: name.lstrip("_")[:1].isupper() and not name.isupper() for name in found}
    return {name: paths for name, paths in found.items() if is_class[name] and len(paths) > 1}


def test_no_class_name_has_two_meanings() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 100
    assert definitions({str(path.relative_to(PACKAGE)): path.read_text() for path in paths}) == {}


def test_a_second_definition_is_noticed() -> None:
    sources = {"a.py": "class Part: ...", "b.py": "Part = tuple[int, ...]", "c.py": "SIZE = a[0]"}
    assert definitions(sources) == {"Part": ["a.py", "b.py"]}
