"""Private names of torch are used in `torch_internals` alone, and each has an assertion here."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("dtensor_core", "commtrace", "cli")
MODULES = [
    f"{package}.torch_internals.{module.name}"
    for package in ("dtensor_core", "commtrace")
    for module in pkgutil.iter_modules([str(ROOT / package / "torch_internals")])
]


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each private name of torch, imported or reached by dots."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        found: dict[str, str] = {}
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.partition(".")[0] == "torch":
                    found[each.asname or "torch"] = each.name if each.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            found = {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        modules |= found
        yield from ((node.lineno, name) for name in found.values() if is_private(name))
    for node in ast.walk(tree):
        first, *rest = dotted(node)
        if first in modules and rest and is_private(".".join(rest)):
            yield node.lineno, ".".join((modules[first], *rest))


def dotted(node: ast.AST) -> list[str]:
    """Return the parts of `a.b.c`; a single empty part for other expressions."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else [""]


def is_private(name: str) -> bool:
    parts = name.split(".")
    is_operator = parts[:2] == ["ops", "aten"] or parts[:3] == ["torch", "ops", "aten"]
    return not is_operator and any(
        part.startswith("_") and not part.endswith("__") for part in parts
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_private_names_of_torch_are_used_in_torch_internals_alone(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if "torch_internals" not in path.parts
        for line, name in private_names(ast.parse(path.read_text()))
    ]
    assert not found, "move to torch_internals, with a test here:\n" + "\n".join(found)


def test_the_search_finds_each_way_to_a_private_name() -> None:
    code = (
        "import torch, torch._dynamo as d\nfrom torch._ops import OpOverload\n"
        "from torch.autograd import forward_ad as f\nfrom torch.distributed import _x\n"
        "f._current_level; torch._C._y; torch.ops.aten._z; f.enter_dual_level"
    )
    assert sorted(private_names(ast.parse(code))) == [
        (1, "torch._dynamo"),
        (2, "torch._ops.OpOverload"),
        (4, "torch.distributed._x"),
        (5, "torch._C"),
        (5, "torch._C._y"),
        (5, "torch.autograd.forward_ad._current_level"),
    ]


def names_of(module: str) -> set[str]:
    """Return the names that a module of `torch_internals` makes, or passes on."""
    loaded = importlib.import_module(module)
    tree = ast.parse(Path(str(loaded.__file__)).read_text())
    made: set[str] = set(getattr(loaded, "__all__", ()))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            made.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            made |= {each.id for each in targets if isinstance(each, ast.Name)}
    return {name for name in made if not name.startswith("_")}


@pytest.mark.parametrize("module", MODULES)
def test_each_name_has_an_assertion(module: str) -> None:
    tests = "\n".join(
        path.read_text()
        for path in Path(__file__).parent.glob("test_*.py")
        if path.name != Path(__file__).name
    )
    words = {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(ast.parse(tests))
        if isinstance(node, (ast.Name, ast.Attribute))
    }
    assert names_of(module) - words == set()


def test_both_packages_mean_the_same_by_a_name() -> None:
    of: dict[str, list[object]] = {}
    for module in MODULES:
        for name in names_of(module):
            of.setdefault(name, []).append(getattr(importlib.import_module(module), name))
    shared = {name: values for name, values in of.items() if len(values) > 1}
    assert {"FakeTensor", "OpOverload", "current_node", "no_dispatch_modes"} <= set(shared)
    assert [n for n, values in shared.items() if any(v is not values[0] for v in values)] == []
