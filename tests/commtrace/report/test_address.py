"""The page's address holds its view: a link opens the same view, and Back undoes changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from commtrace.report import write_report
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.report.browsing import (
    Open,
    column,
    fields,
    go_to,
    marked,
    shown_hash,
    sort_by,
    x_range,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

LEVEL = "(() => { const t = document.getElementById('flame-picture').data[0]; return t.level })()"


def zoom_flame(page: Page) -> None:
    page.locator("#flame-picture .slice", has_text="tok_embeddings").first.click()
    page.wait_for_function(f"() => {LEVEL} !== '0'")


ACTS: dict[str, tuple[Any, dict[str, str]]] = {
    "flame zoom": (zoom_flame, {"at": "flame", "block": "forward/tok_embeddings"}),
    "measure": (
        lambda page: page.click("#flame-value [data-value=num_calls]"),
        {"at": "flame", "measure": "num_calls"},
    ),
    "search of blocks": (
        lambda page: page.fill("#flame-search", "embedding"),
        {"at": "flame", "blocks": "embedding"},
    ),
    "kinds": (
        lambda page: page.click("#legend [data-kind=barrier]"),
        {"at": "timeline", "hide": "barrier"},
    ),
    "table": (lambda page: page.click("#tab-by_op"), {"at": "tables", "table": "by_op"}),
    "sort": (lambda page: sort_by(page, "num_calls"), {"at": "tables", "sort": "-num_calls"}),
    "search": (
        lambda page: page.fill("#search", "all_gather"),
        {"at": "tables", "search": "all_gather"},
    ),
    "theme": (lambda page: page.click("#theme"), {"at": "overview", "theme": "dark"}),
    "section": (lambda page: page.click("nav a[href='#facts']"), {"at": "facts"}),
}


def test_each_part_of_the_view_stands_in_the_address_and_back_undoes_it(page: Page) -> None:
    assert shown_hash(page) == ""
    for name, (act, wanted) in ACTS.items():
        act(page)
        assert fields(page) == wanted, name
        page.go_back()
        assert shown_hash(page) == "", name
        page.go_forward()
        assert fields(page) == wanted, name
        page.go_back()


def state(page: Page) -> dict[str, Any]:
    """State of the page, read from its elements."""
    return page.evaluate(
        f"""() => ({{
            level: {LEVEL},
            width: document.getElementById("flame-picture").data[0].values[0],
            range: document.getElementById("timeline-picture").layout.xaxis.range.map(Math.fround),
            step: document.getElementById("step").value,
            kinds: document.querySelectorAll("#legend [aria-pressed=false]").length,
            tab: document.querySelector("#tabs [aria-selected=true]").id,
            rows: document.querySelector("#table tbody").innerText,
            sort: document.querySelector("#table th[aria-sort]")?.dataset.name,
            call: document.getElementById("detail-title").textContent,
            open: !document.getElementById("detail").hidden,
            marked: document.getElementById("marked-title").textContent,
            filter: document.querySelector("[data-filter]").textContent,
            theme: document.documentElement.dataset.theme,
        }})"""
    )


def everything(page: Page) -> None:
    """Change everything that an address can hold."""
    page.click("#theme")
    page.click("#flame-value [data-value=num_calls]")
    zoom_flame(page)
    page.click("#legend [data-kind=barrier]")
    page.click("#tab-by_module")
    page.locator("#table tbody tr", has_text="layers.0").click()
    page.click("#finding-1 [data-evidence]")
    page.click("#marked-after")
    page.click("#closer")
    page.click("#tab-calls")
    page.fill("#search", "rank:1")
    sort_by(page, "wait_ns")
    page.locator("#table tbody tr").first.click()
    page.locator("#detail").wait_for()


def test_a_link_opens_the_same_view_in_a_new_tab(open_page: Open, training: Path) -> None:
    opened = open_page(training)
    page = opened.page
    everything(page)
    page.wait_for_timeout(500)
    wanted, address = state(page), page.url
    assert set(fields(page)) == {
        *("theme", "measure", "block", "hide", "module", "finding", "time"),
        *("table", "sort", "search", "call", "at"),
    }
    fresh = open_page(training)
    go_to(fresh.page, address)
    fresh.page.wait_for_timeout(500)
    assert state(fresh.page) == wanted
    assert fresh.page.locator("#link-note").is_hidden()
    assert opened.errors == fresh.errors == []


def test_back_undoes_one_deliberate_step_at_a_time(page: Page) -> None:
    page.click("#tab-by_op")
    page.click("#closer")
    after = x_range(page)
    page.wait_for_timeout(800)
    page.click("#closer")
    assert x_range(page) != after
    page.go_back()
    page.wait_for_timeout(300)
    assert x_range(page) == pytest.approx(after)
    page.go_back()
    page.wait_for_timeout(300)
    assert fields(page) == {"at": "tables", "table": "by_op"}
    page.go_back()
    assert shown_hash(page) == ""
    assert page.get_attribute("#tab-by_kind", "aria-selected") == "true"


def test_a_gesture_is_one_step_back_and_writes_little(page: Page) -> None:
    page.evaluate(
        """() => { window.written = [];
        for (const how of ["pushState", "replaceState"]) {
            const real = history[how].bind(history);
            history[how] = (...given) => { window.written.push(how); return real(...given); };
        }
        const now = performance.now(); // drawing may take long, which is not the user's time
        performance.now = () => now; }"""
    )
    before = page.evaluate("history.length")
    page.evaluate(
        """async () => {
            const search = document.getElementById("search");
            for (const letter of "all_gather forward") {
                search.value += letter;
                search.dispatchEvent(new Event("input"));
                await Promise.resolve();
            }
            const place = document.getElementById("timeline-picture");
            for (let n = 0; n < 12; n += 1) {
                place.dispatchEvent(new KeyboardEvent("keydown", { key: "w", bubbles: true }));
                await Promise.resolve();
            }
        }"""
    )
    page.wait_for_timeout(500)
    written = page.evaluate("window.written")
    assert written.count("pushState") == 2
    assert len(written) <= 6
    assert page.evaluate("history.length") == before + 2
    page.go_back()
    page.wait_for_timeout(300)
    assert page.input_value("#search") == "all_gather forward"
    assert "time" not in fields(page)


HOSTILE = [
    "at=nowhere",
    "table=made_up",
    "sort=-<img src=x onerror=hacked()>",
    "time=9..1",
    "time=1e9..2e9",
    "time=NaN..Infinity",
    "time=99999999..999999999",
    "block=forward/none",
    "hide=none",
    "module=no.such",
    "call=99:1",
    "call=0:999999999999999",
    "finding=finding-99.1",
    "finding=problem-1.1",
    "theme=pink",
    "measure=__proto__",
    "constructor=1",
    "search=%E0%A4%A",
    "search=" + "x" * 400,
    "x" * 9000 + "=1",
    "page=00000000&table=by_op",
]


def test_what_an_address_cannot_mean_is_left_out_and_reported(shared: Page) -> None:
    wanted = state(shared)
    for hash in HOSTILE:
        shared.evaluate("hash => { location.hash = hash }", hash)
        shared.wait_for_function("() => !document.getElementById('link-note').hidden")
        assert state(shared) == wanted, hash
        said = shared.inner_text("#link-note-text")
        assert said.startswith("Parts of the link could not be applied"), hash
        assert len(said) < 260
        shared.click("#link-note-close")
        assert shared.locator("#link-note").is_hidden()
        assert shared.locator("body img").count() == 0


def test_the_rest_of_such_an_address_is_followed(shared: Page, training: Path) -> None:
    go_to(shared, f"{training.as_uri()}#table=by_op&time=9..1&search=aten.mm")
    assert shared.get_attribute("#tab-by_op", "aria-selected") == "true"
    assert set(column(shared, 1)) == {"aten.mm.default"}
    assert "time=9..1: it is too short a time" in shared.inner_text("#link-note-text")


def test_the_address_of_another_run_is_not_followed(
    open_page: Open, tmp_path: Path, page: Page
) -> None:
    page.click("#tab-by_op")
    hash = page.evaluate("location.hash")
    other = write_report(training_trace(num_steps=2), tmp_path / "other.html")
    opened = open_page(other)
    go_to(opened.page, other.as_uri() + hash)
    assert "another run" in opened.page.inner_text("#link-note-text")
    assert opened.page.get_attribute("#tab-by_kind", "aria-selected") == "true"


def test_the_same_run_has_the_same_address_on_a_page_that_is_written_again(
    open_page: Open, tmp_path: Path, page: Page
) -> None:
    page.click("#finding-1 [data-evidence]")
    hash = page.evaluate("location.hash")
    again = write_report(training_trace(), tmp_path / "again.html")
    opened = open_page(again)
    go_to(opened.page, again.as_uri() + hash)
    opened.page.wait_for_timeout(300)
    assert opened.page.locator("#marked").is_visible()
    assert marked(opened.page) == marked(page) > 0


def test_an_anchor_of_a_section_leads_there(shared: Page, training: Path) -> None:
    go_to(shared, f"{training.as_uri()}#tables")
    assert shared.locator("#link-note").is_hidden()
    top = shared.evaluate("document.getElementById('tables').getBoundingClientRect().top")
    assert 0 <= top < 200
