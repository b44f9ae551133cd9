"""Figures of a notebook stay visible when it is exported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from nbclient import NotebookClient

from commtrace.tracefile import write_trace
from commtrace.views.figure import PLOTLY, Drawn, _Carrier
from commtrace.views.run import load
from tests.commtrace.analyze.training import training_trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[3]
CELLS = (
    "import commtrace\nfrom IPython.display import display\nrun = commtrace.load('run.json')",
    "display(run.flame())\nrun.timeline()",
    "run.matrix()",
)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A notebook that was executed, with three figures."""
    folder = tmp_path_factory.mktemp("notebook")
    write_trace(training_trace(), folder / "run.json")
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    made = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(
        made, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    environment = {name: text for name, text in os.environ.items() if name != "PLOTLY_RENDERER"}
    paths = [str(ROOT), environment.get("PYTHONPATH", "")]
    return client.execute(env=environment | {"PYTHONPATH": os.pathsep.join(filter(None, paths))})


def outputs(notebook: Any) -> list[Any]:
    return [output["data"] for cell in notebook.cells for output in cell.get("outputs", ())]


def test_a_figure_is_data_for_jupyter_and_html_for_others(notebook: Any) -> None:
    found = outputs(notebook)
    assert [*map(sorted, found)] == [[PLOTLY, "text/html", "text/plain"]] * 3
    assert found[0]["text/plain"] == "Where communication comes from"
    assert ['commtrace-plotly">' in data["text/html"] for data in found] == [True, False, False]
    assert max(len(data["text/html"]) for data in found[1:]) < 50_000


def test_an_exported_notebook_draws_every_figure(
    notebook: Any, browser: Browser, tmp_path: Path
) -> None:
    exporter = pytest.importorskip("nbconvert", reason="a dependency of MkDocs' plugins")
    html, _ = exporter.HTMLExporter().from_notebook_node(notebook)
    assert html.count('class="commtrace-plotly"') == 1
    path = tmp_path / "notebook.html"
    path.write_text(html, encoding="utf-8")
    page = browser.new_page()
    page.route(
        "**/*",
        lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort(),
    )
    page.goto(path.as_uri(), wait_until="domcontentloaded")
    page.wait_for_function("document.querySelectorAll('.commtrace-figure .main-svg').length >= 3")
    titles = page.locator(".commtrace-figure .gtitle").all_text_contents()
    assert titles == [
        "Where communication comes from",
        "When each rank communicates",
        "Bytes from rank to rank",
    ]
    page.close()


def test_a_figure_without_the_script_says_so(
    notebook: Any, browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "part.html"
    path.write_text(outputs(notebook)[2]["text/html"], encoding="utf-8")
    page = browser.new_page()
    page.goto(path.as_uri())
    assert "Run all cells again" in page.inner_text(".commtrace-figure")
    page.close()


def test_the_cell_with_the_script_keeps_it_when_it_is_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    carrier, sent = _Carrier(), {}
    monkeypatch.setattr(
        "IPython.core.getipython.get_ipython",
        lambda: type("Shell", (), {"get_parent": lambda self: sent})(),
    )

    def runs(message: str, cell: str, code: str) -> bool:
        sent.update(header={"msg_id": message}, metadata={"cellId": cell}, content={"code": code})
        return carrier.takes()

    assert runs("1", "a", "run.flame()")
    assert not runs("1", "a", "run.flame()")  # a second figure of the cell
    assert not runs("2", "b", "run.matrix()")
    assert runs("3", "a", "run.flame(value='num_calls')")  # run again, edited


def test_without_a_kernel_one_figure_carries_the_script() -> None:
    carrier = _Carrier()
    assert [carrier.takes(), carrier.takes()] == [True, False]


def test_a_renderer_that_was_chosen_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setenv("PLOTLY_RENDERER", "json")
    monkeypatch.setattr("plotly.io.show", lambda figure: shown.append(type(figure).__name__))
    figure = load(training_trace()).flame()
    assert isinstance(figure, Drawn)
    figure._ipython_display_()
    assert shown == ["Drawn"]
