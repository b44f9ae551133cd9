"""Docstrings name the thing that they describe, and texts use the standard terms of the field."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from functools import cache
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

# Patterns of words without a correct use. The terms are sharded, replicated, full tensor, partial
# sum, attributed to, reports, straggler, fake process group. Each kind of text in `FORBIDDEN` adds
# a list to those of the kind before it.
_EVERYWHERE = (
    "as it comes",
    "heard",
    "knows nothing of",
    "laid open",
    "lain",
    "last words",
    "late is who",
    "latecomers?",
    "mend(s|ed|ing)?",
    "occasions?",
    "pretend(s|ed)",
    "reduced again",
    "said at once",
    "that which",
    "tells? apart",
    "who keeps",
)
_PROSE = (
    "at hand",
    "booked",
    "cut (along|by|axis|axes|dims?|dimensions?|inputs?|weights?|tensors?)",
    "nobody asked",
    "shows? itself",
    "taken apart",
    "addends?",
    "tells?",
    "what is no",
    "whole (activations|batch|experts?|gradients?|keys|parameters?|values|weights?)",
)
_COMMENTS = ("crews?", "judgement", "obeys?", "planted", "witness(es)?")
_DOCUMENTS = ("hears", "spoiled", "told", "whole tensors?", "who met")
FORBIDDEN = {
    "test names": _EVERYWHERE,
    "docstrings": _EVERYWHERE + _PROSE,
    "comments": _EVERYWHERE + _PROSE + _COMMENTS,
    "documents": _EVERYWHERE + _PROSE + _COMMENTS + _DOCUMENTS,
}
# Files and words that are allowed there, with the reason.
ALLOWED = {("CHANGELOG.md", "latecomers"): "the former name of the table `stragglers`"}


OF_OTHERS = "held_out"
"""Folder of programs that are kept as others wrote them."""


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


def texts_of_python(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the kinds and texts of a file's docstrings, comments and test names."""
    source = path.read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED):
            yield "docstrings", ast.get_docstring(node) or ""
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield "test names", node.name.replace("_", " ")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield "comments", token.string


@cache
def texts() -> list[tuple[str, Path, str]]:
    """Return all texts of the repository, as kind, file and text."""
    found = []
    for folder in sorted(FOLDERS):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != Path(__file__) and OF_OTHERS not in path.parts:
                found += [(kind, path, text) for kind, text in texts_of_python(path)]
    for path in sorted((ROOT / "commtrace").rglob("*.js")):
        comments = re.findall(r"/\*.*?\*/|//[^\n]*", path.read_text("utf-8"), re.S)
        found += [("comments", path, text) for text in comments]
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        found.append(("documents", path, path.read_text("utf-8")))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        sources = ["".join(each["source"]) for each in cells if each["cell_type"] == "markdown"]
        found += [("documents", path, text) for text in sources]
    return found


def forbidden(kind: str, text: str) -> list[str]:
    """Return the forbidden words of a text of this kind."""
    words = "|".join(FORBIDDEN[kind]).replace(" ", r"\s+")
    return [found[0] for found in re.finditer(rf"\b(?:{words})\b", text, re.IGNORECASE)]


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_texts_use_the_terms_of_the_field(kind: str) -> None:
    examined = [(str(path.relative_to(ROOT)), text) for each, path, text in texts() if each == kind]
    assert len(examined) > 20
    found = [(path, word) for path, text in examined for word in forbidden(kind, text)]
    assert [each for each in found if each not in ALLOWED] == []


@pytest.mark.parametrize(
    ("kind", "text", "word"),
    [
        ("test names", "test a latecomer is named", "latecomer"),
        ("docstrings", "Return what is booked to the unit.", "booked"),
        ("comments", "# one of the addends", "addends"),
        ("documents", "It takes the whole\ntensor.", "whole\ntensor"),
    ],
)
def test_an_old_word_is_noticed(kind: str, text: str, word: str) -> None:
    assert forbidden(kind, text) == [word]
    assert forbidden(kind, "`gathered_again`, `is_heard`, foretold and cut off") == []


@pytest.mark.parametrize("path", sorted({path for path, _ in ALLOWED}))
def test_what_is_allowed_is_there(path: str) -> None:
    text = (ROOT / path).read_text("utf-8")
    assert all(word in text for allowed, word in ALLOWED if allowed == path)
