"""Run the notebooks and store their outputs: `python notebooks/write.py [NAME ...]`.

Figures are stored as plotly data, which Jupyter and VS Code render, and as a picture for viewers
that run no script. The picture is made in headless Chromium, if there is one. Cells tagged `varies`
show times, which differ from run to run.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
VARIES = "varies"
PLOTLY = "application/vnd.plotly.v1+json"
PICTURE = "image/png"

_TIMEOUT_S = 240
_WIDTH = 900


def executed(path: Path) -> Any:
    """Execute the notebook in a kernel of its own and return it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=_TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
    )
    paths = [str(FOLDER.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PLOTLY_RENDERER": "plotly_mimetype",
        "OMP_NUM_THREADS": "1",
    }
    return client.execute(env=environment)


def figures(notebook: Any) -> list[Any]:
    """Return the outputs that are plotly figures."""
    return [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if PLOTLY in output.get("data", {})
    ]


def draw(notebook: Any, chromium: str) -> None:
    """Add a picture to each figure."""
    from playwright.sync_api import sync_playwright
    from plotly.offline import get_plotlyjs

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": _WIDTH, "height": 800})
        page.add_script_tag(content=get_plotlyjs())
        for output in figures(notebook):
            figure = json.loads(json.dumps(output["data"][PLOTLY]))
            height = figure["layout"].get("height", 450)
            size = {"format": "png", "width": _WIDTH, "height": height}
            url = page.evaluate(
                "([{data, layout}, size]) => Plotly.toImage({data, layout}, size)",
                [figure, size],
            )
            output["data"][PICTURE] = url.partition(",")[2]
            assert base64.b64decode(output["data"][PICTURE]).startswith(b"\x89PNG")
        browser.close()


def _chromium() -> str:
    return os.environ.get("COMMTRACE_CHROMIUM") or shutil.which("chromium") or ""


def main(names: list[str]) -> None:
    """Run the named notebooks, or all of them."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        notebook = executed(path)
        chromium = _chromium()
        if chromium:
            draw(notebook, chromium)
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size:,} bytes, {len(figures(notebook))} figures")


if __name__ == "__main__":
    main(sys.argv[1:])
