"""The demo's page is small enough and opens without a script error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.demo.conftest import Demo, start

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SIZE_LIMIT_BYTES = 8_000_000


@pytest.fixture(scope="module")
def page_file(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    done = start("-m", "commtrace_cli", "report", demo.trace, "-o", path)
    assert done.returncode == 0, done.stderr
    return path


def test_the_page_stays_small(page_file: Path) -> None:
    assert page_file.stat().st_size < SIZE_LIMIT_BYTES


def test_the_page_opens_offline_without_a_script_error(page_file: Path, browser: Browser) -> None:
    page = browser.new_page()
    errors: list[str] = []
    requests: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file.as_uri())
    page.wait_for_selector(".js-plotly-plot", timeout=20_000)
    assert errors == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    page.close()
