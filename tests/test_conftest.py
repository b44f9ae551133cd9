"""A missing browser skips the test with a reason, or fails it where a browser is required."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SLOWEST

ROOT = Path(__file__).parents[1]
USES_BROWSER = "def test_page(browser):\n    assert browser.version\n"


def run_pytest(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a browser test under this project's conftest in a process of its own."""
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_page.py").write_text(USES_BROWSER)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = browser\n")
    command = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", str(folder)]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("COMMTRACE_")}
    return subprocess.run(
        command, env=kept | environment, capture_output=True, text=True, timeout=120, cwd=folder
    )


def test_without_chromium_a_browser_test_skips_and_says_why(tmp_path: Path) -> None:
    result = run_pytest(tmp_path, COMMTRACE_CHROMIUM="/nowhere/chromium")
    assert result.returncode == 0, result.stdout
    assert "SKIPPED [1]" in result.stdout
    assert "no Chromium found" in result.stdout


def test_without_chromium_a_required_browser_test_does_not_pass(tmp_path: Path) -> None:
    result = run_pytest(
        tmp_path, COMMTRACE_CHROMIUM="/nowhere/chromium", COMMTRACE_REQUIRE_BROWSER="1"
    )
    assert result.returncode == 1, result.stdout
    assert "COMMTRACE_REQUIRE_BROWSER=1 forbids skipping" in result.stdout


def test_an_id_that_differs_between_workers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_objects.py").write_text(
        "import pytest\n@pytest.mark.parametrize('x', [1], ids=[repr(object())])\n"
        "def test_it(x):\n    pass\n"
    )
    result = run_pytest(tmp_path)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "has an address in its id; give it `ids=`" in result.stderr


@pytest.mark.parametrize("marker", ["browser", "not browser"])
def test_browser_tests_are_selected_by_their_marker(tmp_path: Path, marker: str) -> None:
    result = run_pytest(
        tmp_path, COMMTRACE_CHROMIUM="/nowhere/chromium", PYTEST_ADDOPTS=f"-m '{marker}'"
    )
    assert ("1 deselected" in result.stdout) == (marker == "not browser"), result.stdout


def test_the_browser_opens_a_page(browser) -> None:
    page = browser.new_page()
    page.set_content("<title>a</title><script>document.title = 'b'</script>")
    assert page.title() == "b"
    page.close()


def test_the_slowest_files_exist_and_come_first() -> None:
    assert all((ROOT / "tests" / name).is_file() for name in SLOWEST)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/test_conftest.py"]
    slow = f"tests/{SLOWEST[1]}"
    listed = subprocess.run([*command, slow], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert listed.stdout.startswith(slow), listed.stdout
