"""Docstrings name the thing that they describe: none opens with a question word."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "commtrace",
    "dtensor_core",
    "cli",
    "tests",
    "benchmarks",
    "examples",
    "docs",
    "notebooks",
}
OPENERS = {"What", "Who", "Whose", "Whether", "Where", "When", "How", "Which", "Why"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def questions(source: str) -> list[str]:
    """First lines of docstrings that open with a question word."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
    first_lines = [text.partition("\n")[0] for node in nodes if (text := ast.get_docstring(node))]
    return [line for line in first_lines if line.split()[0].strip(",:") in OPENERS]


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_no_docstring_opens_with_a_question_word(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    found = {str(path.relative_to(ROOT)): questions(path.read_text("utf-8")) for path in paths}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_a_question_word_is_noticed() -> None:
    assert questions('def f():\n    """Whether it rains."""') == ["Whether it rains."]
    assert questions('def f():\n    """Return whether it rains."""') == []


def test_no_comment_of_a_script_opens_with_a_question_word() -> None:
    paths = sorted((ROOT / "commtrace").rglob("*.js"))
    assert paths
    openings = re.compile(rf"/\*+\s*(?:{'|'.join(sorted(OPENERS))})\b.*")
    assert openings.search("/** What changed. */")
    found = {path.name: openings.findall(path.read_text("utf-8")) for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}
