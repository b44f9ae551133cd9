"""Fixtures of pages opened in the browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from commtrace.report import write_report
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.report.browsing import PATIENCE_MS, Open, Opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def opened_in(browser: Browser, path: Path, **more: Any) -> Opened:
    """Open a page in a context of its own, and collect its errors."""
    still = {"viewport": {"width": 1400, "height": 1000}, "reduced_motion": "reduce"}
    context = browser.new_context(**(still | more))
    context.set_default_timeout(PATIENCE_MS)
    found = Opened(context.new_page())
    found.page.on("pageerror", lambda error: found.errors.append(str(error)))
    found.page.on(
        "console",
        lambda said: found.errors.append(said.text) if said.type in ("error", "warning") else None,
    )
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(path.as_uri())
    found.page.wait_for_selector("html[data-ready]", state="attached")
    return found


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Open a page, or write that of a run first; `more` goes to the browser's context."""
    pages = []

    def opened(source: Any, **more: Any) -> Opened:
        is_written = isinstance(source, Path)
        path = source if is_written else write_report(source, tmp_path / "report.html")
        found = opened_in(browser, path, **more)
        pages.append(found.page)
        return found

    yield opened
    for page in pages:
        page.context.close()


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a training run of three steps."""
    return write_report(training_trace(), tmp_path_factory.mktemp("training") / "report.html")


@pytest.fixture
def page(open_page: Open, training: Path) -> Iterator[Page]:
    """That page, opened; the test fails if the page reports an error."""
    opened = open_page(training)
    yield opened.page
    assert opened.errors == []


@pytest.fixture(scope="module")
def opened_once(browser: Browser, training: Path) -> Iterator[Opened]:
    """That page, opened once for all tests of a module that ask for `shared`."""
    opened = opened_in(browser, training)
    yield opened
    opened.page.context.close()


@pytest.fixture
def shared(opened_once: Opened) -> Iterator[Page]:
    """The page of `opened_once` in its initial state, for tests that need no history."""
    page = opened_once.page
    for _ in range(4):
        page.keyboard.press("Escape")
    page.evaluate("location.hash = ''")
    page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    page.mouse.move(0, 0)
    page.wait_for_timeout(150)
    yield page
    assert opened_once.errors == []
