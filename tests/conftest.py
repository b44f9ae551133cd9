"""What every test may ask for: a browser, and the same random examples on every CI run.

`browser` is the one way to headless Chromium. Where none is installed the test skips and says so;
with COMMTRACE_REQUIRE_BROWSER=1 (set by .ci/run) the same test fails instead, so that a machine
without a browser can't turn the page's tests off unnoticed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

os.environ.setdefault("OMP_NUM_THREADS", "1")

hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """The browser's path: $COMMTRACE_CHROMIUM, or else the first known name on the PATH."""
    chosen = os.environ.get("COMMTRACE_CHROMIUM")
    candidates = (chosen,) if chosen is not None else CHROMIUM_NAMES
    return next((path for name in candidates if (path := shutil.which(name))), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the browser, so that `-m "not browser"` leaves it out.

    Raises UsageError if a test's id has an address in it: each worker of `pytest -n 2` would
    collect another id, and none of them could be run.
    """
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid} has an address in its id; give it `ids=`")
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium, shared by a module's tests; open a page of your own in it.

    Not shared by the session: its event loop runs as long as it does, and a test elsewhere may
    want one of its own.
    """
    path = find_chromium()
    if path is None:
        message = "no Chromium found: install one (Debian: apt-get install chromium)"
        if os.environ.get("COMMTRACE_REQUIRE_BROWSER") == "1":
            pytest.fail(f"{message}; COMMTRACE_REQUIRE_BROWSER=1 forbids skipping", pytrace=False)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path)
        yield chromium
        chromium.close()
