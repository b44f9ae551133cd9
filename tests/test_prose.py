"""Docstrings open with their subject, and texts have few phrases of a foreign accent."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
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
OF_OTHERS = "held_out"
"""Folder of programs that are kept as others wrote them."""
GENERATED = "Written by `make docs`"

PHRASES = {
    "that of": (r"\b(?:that|those) of\b", 0.3),
    "of which": (r"\bof which\b", 0.3),
    "what is": (r"\bwhat (?:is|has|are|have|was|were|had)\b", 0.3),
    "Of a": (r"(?:^|[.!?]\s+)Of an? ", 0.0),
    "one": (r"\bones?\b", 4.0),
}
"""Patterns of phrases, and their most frequent use per 1,000 words; good libraries have fewer."""


def questions(source: str) -> list[str]:
    """First lines of docstrings that open with a question word."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
    first_lines = [text.partition("\n")[0] for node in nodes if (text := ast.get_docstring(node))]
    return [line for line in first_lines if line.split()[0].strip(",:") in OPENERS]


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_no_docstring_opens_with_a_question_word(folder: str) -> None:
    paths = sorted(path for path in (ROOT / folder).rglob("*.py") if OF_OTHERS not in path.parts)
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


def docstrings(source: str) -> Iterator[str]:
    """Yield the docstrings of a file and of its attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED):
            yield ast.get_docstring(node) or ""
        body = getattr(node, "body", None)
        for before, after in pairwise(body) if isinstance(body, list) else ():
            if isinstance(before, (ast.Assign, ast.AnnAssign)) and isinstance(after, ast.Expr):
                value = after.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


@cache
def texts(kind: str) -> tuple[str, ...]:
    """Return the docstrings of a package, or the documents without their blocks of code."""
    if kind == "documents":
        paths = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
        return tuple(
            re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.S) for path in paths
        )
    paths = sorted((ROOT / kind).rglob("*.py"))
    return tuple(text for path in paths for text in docstrings(path.read_text("utf-8")))


def rate(phrase: str, of: tuple[str, ...]) -> float:
    """Return how many of 1,000 words open a phrase."""
    pattern, _ = PHRASES[phrase]
    found = sum(len(re.findall(pattern, text, re.M)) for text in of)
    return 1000 * found / sum(len(re.findall(r"\w+", text)) for text in of)


@pytest.mark.parametrize("kind", ["commtrace", "dtensor_core", "cli", "documents"])
@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases_of_a_foreign_accent_are_rare(phrase: str, kind: str) -> None:
    assert sum(map(len, texts(kind))) > 20_000
    assert rate(phrase, texts(kind)) <= PHRASES[phrase][1]


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("that of", "The layout is that of the output."),
        ("of which", "Two ranks, of which one waits."),
        ("what is", "Return what is known of a call."),
        ("Of a", "It is read. Of a large run, the first part is."),
        ("one", "The first one of these ones."),
    ],
)
def test_a_phrase_is_noticed(phrase: str, text: str) -> None:
    assert rate(phrase, (text,)) >= 80
    assert rate(phrase, ("Return a kind of tone that often comes at once.",)) == 0
