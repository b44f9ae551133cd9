"""Each notebook runs from its first cell to its last, and shows what it shows when it is run."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pandas
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def run_cell(source: str, names: dict[str, Any]) -> str:
    """What a cell shows: what it prints, then the value of an expression at its end."""
    body = ast.parse(source).body
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
            if value is not None:
                with pandas.option_context("display.width", 80, "display.max_columns", 20):
                    print(value)
    return shown.getvalue()


def shown_in(cell: dict[str, Any]) -> str:
    """What the notebook has as the cell's output."""
    texts = []
    for output in cell["outputs"]:
        assert output["output_type"] != "error"
        text = output.get("text") or output["data"]["text/plain"]
        texts.append("".join(text))
    return "\n".join(texts)


def words(text: str) -> list[str]:
    """The text without its layout, which depends on the width of the window."""
    return text.replace("\\", " ").split()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_running_it_shows(path: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            assert words(run_cell("".join(cell["source"]), names)) == words(shown_in(cell))


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


def test_a_cell_that_fails_or_shows_something_else_is_noticed() -> None:
    assert run_cell("x = 2\nx + 1", {}) == "3\n"
    with pytest.raises(ZeroDivisionError):
        run_cell("1 / 0", {})
    with pytest.raises(AssertionError):
        shown_in({"outputs": [{"output_type": "error"}]})
