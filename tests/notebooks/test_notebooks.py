"""Each notebook runs from its first cell to its last, and reproduces its stored outputs.

Numbers that are times, in cells tagged `varies`, are excluded from the comparison; the types of
such a cell's outputs are not.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from notebooks.write import PICTURE, PLOTLY, VARIES, executed, figures

pytestmark = pytest.mark.usefixtures("preloaded")

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SIZE_LIMIT_BYTES = 1_000_000


@pytest.fixture(autouse=True)
def _no_traces_in_c_plus_plus(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own test cases set the variable for everything that runs later."""
    monkeypatch.delenv("TORCH_SHOW_CPP_STACKTRACES", raising=False)


def shown(cell: Any) -> list[Any]:
    """Outputs of a cell, without layout and, where times are shown, without text."""
    outputs = []
    for output in cell.outputs:
        texts = output.get("data", {"text/plain": output.get("text", "")})
        kinds = sorted(set(texts) - {PICTURE})
        if VARIES in cell.metadata.get("tags", ()):
            outputs.append((output.output_type, kinds))
        else:
            text = texts.get("text/plain", "").replace("\\", " ").split()
            outputs.append((output.output_type, kinds, text, names_of(texts.get(PLOTLY))))
    return outputs


def names_of(figure: Any) -> Any:
    """Labels and values of the parts of a figure."""
    if figure is None:
        return None
    drawn = [[trace.get("labels"), trace.get("values"), trace.get("z")] for trace in figure["data"]]
    return [parts for parts in drawn if any(parts)]


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_running_it_shows(path: Path) -> None:
    kept = nbformat.read(path, as_version=4)
    again = executed(path)
    for before, after in zip(code(kept), code(again), strict=True):
        assert shown(after) == shown(before), before.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_its_figures_have_pictures(path: Path) -> None:
    kept = nbformat.read(path, as_version=4)
    assert path.stat().st_size < SIZE_LIMIT_BYTES
    assert figures(kept)
    assert all(PICTURE in output["data"] for output in figures(kept))
    assert not re.search(r"/tmp/|/home/|/root/", path.read_text(encoding="utf-8"))
    assert [cell.execution_count for cell in code(kept)] == [*range(1, len(code(kept)) + 1)]


def test_there_are_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} == {
        "accelerate",
        "change_what_pays",
        "compare_layouts",
        "ddp",
        "debug_sequence_parallel",
        "find_a_wrong_layout",
        "first_look",
        "fsdp2",
        "pipeline",
    }


def test_a_cell_that_fails_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "failing.ipynb"
    cells = [nbformat.v4.new_code_cell("x = 2"), nbformat.v4.new_code_cell("x / 0")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        executed(path)


def test_a_cell_that_shows_something_else_is_noticed() -> None:
    kept = nbformat.read(FOLDER / "first_look.ipynb", as_version=4)
    for cell in code(kept):
        for place, output in enumerate(cell.outputs):
            changed = copy.deepcopy(cell)
            if VARIES in cell.metadata.get("tags", ()):
                changed.outputs.pop(place)
            elif PLOTLY in output.get("data", {}):
                changed.outputs[place]["data"][PLOTLY]["data"][0]["labels"][0] += "more"
            elif "data" in output:
                changed.outputs[place]["data"]["text/plain"] += " more"
            else:
                changed.outputs[place]["text"] += " more"
            assert shown(changed) != shown(cell)
