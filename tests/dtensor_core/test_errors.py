"""Errors have a text: the request, the finding, the reason, and a remedy."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dtensor_core
from dtensor_core.errors import four_parts

SOURCE = Path(dtensor_core.__file__).parent


def _wordless(text: str) -> list[str]:
    """Raises of a file without a text; a bare name may be an error that was caught."""
    raised = [each.exc for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Raise)]
    calls = [each for each in raised if isinstance(each, ast.Call)]
    classes = [e for e in raised if isinstance(e, ast.Name) and e.id[0].isupper()]
    return [
        ast.unparse(e) for e in (*(c for c in calls if not c.args and not c.keywords), *classes)
    ]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.name)
def test_no_error_is_raised_without_a_text(path: Path) -> None:
    if path.name != "cases.py":  # torch's own test class marks itself as abstract by such a raise
        assert _wordless(path.read_text()) == []


def test_an_error_without_a_text_would_be_noticed() -> None:
    assert _wordless("raise ValueError") == ["ValueError"]
    assert _wordless("raise ValueError()") == ["ValueError()"]
    assert _wordless("try: f()\nexcept E as error: raise error") == []


def test_empty_parts_are_left_out() -> None:
    assert four_parts(summary="a", found="b", hint="c") == "a\n  Found: b\n  Try: c"
