"""Tabs of the browser that are used again, since a page costs a third in a used tab.

Most of the time in which a page opens, Chromium compiles plotly.js. It keeps what it has compiled
of a script for further pages at the same address in the same tab. So pages are copied to the
address of a tab. A tab is empty between tests: without page, history, stored theme and listeners.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.commtrace.report.browsing import PATIENCE_MS, Opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

VIEWPORT = {"width": 1400, "height": 1000}


def new_tab(browser: Browser) -> Page:
    """Return an empty tab, in a context of its own, in which nothing is animated."""
    context = browser.new_context(viewport=VIEWPORT, reduced_motion="reduce")  # pyright: ignore[reportArgumentType]
    context.set_default_timeout(PATIENCE_MS)
    return context.new_page()


def load_page(page: Page, path: Path) -> None:
    """Load a page into a tab, and wait until it is complete."""
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")


class Tabs:
    """The tabs of a browser: a test uses as many at a time as it opens pages."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser = browser
        self._folder = folder
        self._tabs: list[Page] = []
        self._used: list[Opened] = []

    def open(
        self,
        path: Path,
        *,
        viewport: Any = VIEWPORT,
        color_scheme: Any = "light",
        messages: list[str] | None = None,
    ) -> Opened:
        """Open a page in a window of this size, on a system of this theme.

        Args:
            path: the page.
            viewport: size of the window.
            color_scheme: theme of the system.
            messages: where to collect what it reports.
        """
        place = len(self._used)
        if place == len(self._tabs):
            self._tabs.append(new_tab(self._browser))
        found = Opened(self._tabs[place], messages=[] if messages is None else messages)
        self._used.append(found)
        found.page.set_viewport_size(viewport)
        found.page.emulate_media(color_scheme=color_scheme, reduced_motion="reduce")
        found.listen()
        copied = shutil.copyfile(path, self._folder / f"tab-{place}.html")
        load_page(found.page, copied)
        session = found.page.context.new_cdp_session(found.page)
        session.send("Page.resetNavigationHistory")
        session.detach()
        return found

    def leave(self) -> None:
        """Empty the tabs that are in use."""
        for used in self._used:
            used.stop()
            used.page.evaluate("localStorage.clear()")
            used.page.mouse.move(0, 0)
            used.page.goto("about:blank")
        self._used.clear()

    def close(self) -> None:
        """Close all tabs."""
        for tab in self._tabs:
            tab.context.close()
