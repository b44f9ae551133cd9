"""Ten tasks of a user: each is two clicks from the front page at most, and found by the search."""

from __future__ import annotations

import functools
import http.server
import json
import os
import posixpath
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
MOST_CLICKS = 2
FIRST_RESULTS = 3


@dataclass(frozen=True, slots=True)
class Task:
    """A task, the page that answers it, and what a user types into the search."""

    task: str
    page: str
    words: str


TASKS = (
    Task("find a hang", "howto/hang.html", "hang"),
    Task("find which line communicates most", "howto/where.html", "line"),
    Task("see the bytes of each module", "howto/where.html", "bytes by module"),
    Task("compare two layouts", "howto/compare.html", "compare runs"),
    Task("use it in pytest", "howto/ci.html", "pytest"),
    Task("record under torchrun or Slurm", "howto/slurm.html", "slurm"),
    Task("export to CSV or Perfetto", "howto/export.html", "export csv"),
    Task("mute a finding", "howto/mute.html", "mute"),
    Task("learn what would help most", "howto/slow.html", "slow"),
    Task("check that gradients and values are right", "howto/values.html", "gradients right"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built."""
    pytest.importorskip("mkdocs", reason="MkDocs' plugins need Python 3.11.5 or newer")
    folder = tmp_path_factory.mktemp("site")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The address of the site, which its search needs: it runs in a worker."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def linked(site: Path, page: str) -> set[str]:
    """Return the pages that the text of a page links to, without its navigation."""
    text = (site / page).read_text("utf-8")
    (article,) = re.findall(r"<article.*?</article>", text, re.S)
    targets = re.findall(r'href="([^"#:]+\.html)(?:#[^"]*)?"', article)
    return {posixpath.normpath(posixpath.join(posixpath.dirname(page), each)) for each in targets}


def clicks(site: Path, most: int) -> dict[str, int]:
    """Return the pages that are at most so many clicks from the front page."""
    found = {"index.html": 0}
    for number in range(1, most + 1):
        for page in [each for each, clicked in found.items() if clicked == number - 1]:
            for target in linked(site, page) - set(found):
                if (site / target).exists():
                    found[target] = number
    return found


def test_every_task_is_two_clicks_from_the_front_page(site: Path) -> None:
    found = clicks(site, MOST_CLICKS)
    assert {each.task for each in TASKS if each.page not in found} == set()


def test_every_how_to_is_linked_from_the_front_page(site: Path) -> None:
    pages = {f"howto/{path.stem}.html" for path in (ROOT / "docs" / "howto").glob("*.md")}
    assert pages - linked(site, "index.html") == set()


def test_a_page_without_links_to_it_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<article><a href="a.html#x"></a></article>')
    (tmp_path / "a.html").write_text('<nav href="c.html"></nav><article href="b.html"></article>')
    (tmp_path / "b.html").write_text('<article href="c.html"></article>')
    (tmp_path / "c.html").write_text("<article></article>")
    assert clicks(tmp_path, 2) == {"index.html": 0, "a.html": 1, "b.html": 2}


def test_the_changelog_is_left_out_of_the_search(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    pages = {each["location"].partition("#")[0] for each in index["docs"]}
    assert "howto/hang.html" in pages
    assert "changelog.html" not in pages


def test_every_task_is_found_by_the_search(address: str, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(address)
    missing = {}
    for task in TASKS:
        page.goto(f"{address}/?q={task.words.replace(' ', '+')}")
        page.wait_for_selector(".md-search-result__item a", state="attached", timeout=60_000)
        links = page.locator(".md-search-result__item > a").evaluate_all(
            "links => links.map((link) => new URL(link.href).pathname.slice(1))"
        )
        if task.page not in links[:FIRST_RESULTS]:
            missing[task.words] = links[:FIRST_RESULTS]
    page.close()
    assert missing == {}
