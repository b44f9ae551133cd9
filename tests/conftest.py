"""Fixtures and settings of all tests: browser, small disks, random examples in CI, signals.

`browser` is the only way to headless Chromium. If none is installed, the test is skipped with the
reason; with COMMTRACE_REQUIRE_BROWSER=1 (set by .ci/run) it fails instead, so that a machine
without a browser cannot silently disable the page's tests.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

os.environ.setdefault("OMP_NUM_THREADS", "1")

# `nohup` and a shell's `&` start tests with signals ignored, and the programs that tests interrupt
# would inherit that.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        is_sigint = _number == signal.SIGINT
        signal.signal(_number, signal.default_int_handler if is_sigint else signal.SIG_DFL)

hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")

SLOWEST = (
    "commtrace/analyze/stored/test_stored_run.py",
    "commtrace/launching/test_child_ranks.py",
    "commtrace/report/test_page_in_browser.py",
    "dtensor_core/models/test_pretrained.py",
    "demo/test_analyses.py",
    "dtensor_core/operators/test_table.py",
    "commtrace/analyze/test_long_runs.py",
    "programs/test_programs.py",
    "dtensor_core/works_with/test_compile.py",
    "commtrace/analyze/test_second_computation.py",
    "commtrace/analyze/stored/test_dask_workers.py",
    "dtensor_core/models/test_llama.py",
    "commtrace/analyze/run/test_parts.py",
    "docs/test_trainers.py",
    "launchers/test_torchrun.py",
    "opdb/test_scan.py",
    "commtrace/report/test_address.py",
    "commtrace/report/test_story_in_browser.py",
    "commtrace/pytest_plugin/test_options.py",
    "notebooks/test_notebooks.py",
    "test_imports.py",
    "test_wheel.py",
)
"""Files that take longest. They come first, so that none is left to a single worker at the end."""

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """Path of the browser: $COMMTRACE_CHROMIUM, or else the first known name on the PATH."""
    chosen = os.environ.get("COMMTRACE_CHROMIUM")
    candidates = (chosen,) if chosen is not None else CHROMIUM_NAMES
    return next((path for name in candidates if (path := shutil.which(name))), None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without garbage collection, and exempt what they consist of from it.

    A million objects live until the end. Each full collection would search them all again, and
    tests call for hundreds of them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        _seed_without_stacks()


def _seed_without_stacks() -> None:
    """Let `torch.manual_seed` keep seeds for devices that are not in use without the stack.

    torch keeps each of them with the caller's stack as text, which takes two milliseconds, more
    than most operators that a test calls.
    """
    without = types.SimpleNamespace(format_stack=list)
    for name in ("torch.cuda", "torch.xpu", "torch.mtia"):
        if name in sys.modules:
            sys.modules[name].traceback = without  # type: ignore[attr-defined]


@pytest.fixture(scope="module", autouse=True)
def _exempt_leftovers() -> Iterator[None]:
    """Exempt also what a file's tests have imported and cached from later garbage collections."""
    yield
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use the browser, and put the slowest files first.

    Raises:
        UsageError: A test's id contains an address. Each worker of `pytest -n 2` would collect
            another
            id, and none of them could be run.
    """
    place = {Path(__file__).parent / name: number for number, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid} has an address in its id; give it `ids=`")
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)


@pytest.fixture
def preloaded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork the interpreters that a test starts from an interpreter that has loaded torch.

    A file asks for it with `pytestmark = pytest.mark.usefixtures("preloaded")`; its tests of how
    processes start have the marker `cold_start`.
    """
    from tests.preloaded import forked_interpreters

    is_cold = request.node.get_closest_marker("cold_start") is not None
    with contextlib.nullcontext() if is_cold else forked_interpreters():
        yield


@pytest.fixture
def disk_of(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Function that mounts a file system of a size, such as 200k; at most once for each test."""
    disk = tmp_path / "disk"

    def mounted(size: str) -> Path:
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
        ended = subprocess.run(mount, capture_output=True, text=True, timeout=20)
        if ended.returncode:
            pytest.skip(f"file systems cannot be mounted here: {ended.stderr.strip()}")
        return disk

    yield mounted
    if os.path.ismount(disk):
        subprocess.run(["umount", "-l", str(disk)], check=True, timeout=20)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium, shared by a module's tests; open a page of your own in it.

    It is not shared by the session: its event loop runs until it is closed, and tests elsewhere may
    need their own.
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
