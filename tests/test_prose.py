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

PACKAGES = ("commtrace", "dtensor_core", "cli/commtrace_cli")
DOCSTRINGS = {
    "commtrace": ("commtrace",),
    "dtensor_core": ("dtensor_core",),
    "cli": ("cli",),
    "tests and benchmarks": ("tests", "benchmarks"),
}
"""Folders whose docstrings are measured together."""
LEAST_WORDS = 5
"""Words of a string that is taken for a printed text rather than a name or a format."""


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


def printed(source: str) -> Iterator[str]:
    """Yield the strings of a file that are sentences, except docstrings; `…` is a placeholder."""
    tree = ast.parse(source)
    within = {
        id(part)
        for node in ast.walk(tree)
        for part in (
            node.values
            if isinstance(node, ast.JoinedStr)
            else [node.value]
            if isinstance(node, ast.Expr)
            else []
        )
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
        elif isinstance(node, ast.Constant) and id(node) not in within:
            parts = [node.value] if isinstance(node.value, str) else []
        else:
            continue
        text = "".join(map(str, parts))
        if len(text.split()) >= LEAST_WORDS:
            yield text


def sources(*folders: str) -> list[str]:
    """Return the files of folders that are written here."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [path.read_text("utf-8") for path in paths if OF_OTHERS not in path.parts]


@cache
def texts(kind: str) -> tuple[str, ...]:
    """Return docstrings, printed texts, or the documents without their blocks of code."""
    if kind == "documents":
        paths = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
        return tuple(
            re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.S) for path in paths
        )
    if kind == "printed":
        return tuple(text for source in sources(*PACKAGES) for text in printed(source))
    return tuple(text for source in sources(*DOCSTRINGS[kind]) for text in docstrings(source))


def rate(phrase: str, of: tuple[str, ...]) -> float:
    """Return how many of 1,000 words open a phrase."""
    pattern, _ = PHRASES[phrase]
    found = sum(len(re.findall(pattern, text, re.M)) for text in of)
    return 1000 * found / sum(len(re.findall(r"\w+", text)) for text in of)


@pytest.mark.parametrize("kind", [*DOCSTRINGS, "documents", "printed"])
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


def test_printed_texts_are_the_sentences_that_are_no_docstrings() -> None:
    source = '''
def f(rank):
    """Return the name that a rank of the run has."""
    say("the rank of" " the first call is unknown", end="a name")
    say(f"the ranks of {rank} are those of {', '.join(rank)}")
    return b"bytes are no text, however many"

NAME = "text of a variable with a docstring"
"""The variable has a docstring that is not printed."""
'''
    assert sorted(printed(source)) == [
        "text of a variable with a docstring",
        "the rank of the first call is unknown",
        "the ranks of … are those of …",
    ]
