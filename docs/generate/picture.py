"""Draw the picture of the front page: the top of a run's page, in headless Chromium.

python docs/generate/picture.py build/demo/run.json
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from commtrace.report import write_report
from commtrace.views.run import load

PICTURE = Path(__file__).parents[1] / "images" / "report.png"
SIZE = {"width": 1280, "height": 760}


def main(trace: str) -> None:
    """Write the page of the trace to a temporary folder, and its top to `PICTURE`."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("COMMTRACE_CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = write_report(load(trace), Path(folder) / "page.html")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={**SIZE}, color_scheme="light")
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        page.screenshot(path=PICTURE)
        browser.close()
    print(f"{PICTURE.name}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
