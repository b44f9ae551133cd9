"""Fixtures of pages opened in the browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from commtrace.report import write_report
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.report.browsing import Open, Opened
from tests.commtrace.report.tabs import Tabs, load_page, new_tab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def opened_in(browser: Browser, path: Path) -> Opened:
    """Open a page in a context of its own, and collect its errors."""
    found = Opened(new_tab(browser))
    found.listen()
    load_page(found.page, path)
    return found


@pytest.fixture(scope="module")
def tabs(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tabs]:
    """Tabs that the tests of a module open pages in, in turn."""
    tabs = Tabs(browser, tmp_path_factory.mktemp("tabs"))
    yield tabs
    tabs.close()


@pytest.fixture
def open_page(tabs: Tabs, tmp_path: Path) -> Iterator[Open]:
    """Open a page, or first write the page of a run; `look` is of `Tabs.open`."""

    def opened(source: Any, **look: Any) -> Opened:
        is_written = isinstance(source, Path)
        path = source if is_written else write_report(source, tmp_path / "report.html")
        return tabs.open(path, **look)

    yield opened
    tabs.leave()


@pytest.fixture(scope="session")
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
