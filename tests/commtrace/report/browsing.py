"""A page in headless Chromium, and helpers of its tests to act and read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Error, Page, Request

PATIENCE_MS = 60_000  # starting plotly takes ten seconds on two busy cores


@dataclass
class Opened:
    """A page in the browser, with the errors, requests and messages of any kind it caused."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """Collect from now on."""
        self.page.on("pageerror", self._on_error)
        self.page.on("console", self._on_message)
        self.page.on("request", self._on_request)

    def stop(self) -> None:
        """Collect no longer."""
        self.page.remove_listener("pageerror", self._on_error)
        self.page.remove_listener("console", self._on_message)
        self.page.remove_listener("request", self._on_request)

    def _on_error(self, error: Error) -> None:
        self.errors.append(str(error))
        self.messages.append(str(error))

    def _on_message(self, said: ConsoleMessage) -> None:
        self.messages.append(said.text)
        if said.type in ("error", "warning"):
            self.errors.append(said.text)

    def _on_request(self, request: Request) -> None:
        self.requests.append(request.url)


Open = Callable[..., Opened]


def hover(page: Page, place: str, selector: str) -> str:
    """Hover over the middle of a drawn element and return the text of its label."""
    page.locator(f"{place}").scroll_into_view_if_needed()
    box = page.locator(f"{place} {selector}").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2 - 1, box["y"] + box["height"] / 2)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    label = page.locator(f"{place} .hoverlayer .hovertext").first
    label.wait_for()
    return label.text_content() or ""


def column(page: Page, number: int) -> list[str]:
    """Texts of a column of the visible table."""
    return page.locator(f"#table tbody tr td:nth-child({number})").all_inner_texts()


def x_range(page: Page) -> list[float]:
    return page.evaluate("document.getElementById('timeline-picture').layout.xaxis.range")


def sort_by(page: Page, name: str) -> str | None:
    """Click a column's header and return its `aria-sort`."""
    page.click(f"#table th[data-name={name}] button")
    return page.get_attribute(f"#table th[data-name={name}]", "aria-sort")


def marked(page: Page) -> int:
    return page.evaluate(
        "document.getElementById('timeline-picture').data"
        ".filter(trace => trace.meta.part === 'mark').flatMap(trace => trace.x).length / 2"
    )


def shown_hash(page: Page) -> str:
    """The page's address after `#`, once pending changes have settled."""
    page.wait_for_timeout(300)
    return page.evaluate("decodeURIComponent(location.hash.slice(1))")


def fields(page: Page) -> dict[str, str]:
    """Parts of the view that the address names."""
    pairs = (each.partition("=") for each in shown_hash(page).split("&") if each)
    return {name: value for name, _, value in pairs if name != "page"}


def go_to(page: Page, hash: str) -> None:
    """Open an address as a link in a new tab would."""
    page.goto("about:blank")
    page.goto(hash)
    page.wait_for_selector("html[data-ready]", state="attached")
