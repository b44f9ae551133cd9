"""Downloads: tables as CSV that no spreadsheet executes, pictures as SVG; filtered by module."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING

import pytest

from commtrace.analyze import CATALOG, load
from commtrace.exporters.spreadsheet import cell
from tests.commtrace.analyze.rows import call, run_of
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.report.browsing import Open, column, fields, sort_by

if TYPE_CHECKING:
    from playwright.sync_api import Page

PICTURES = ("flame", "timeline", "steps", "waits", "overlap_lost", "sizes", "bandwidth", "matrix")


def saved(page: Page, selector: str) -> tuple[str, str]:
    """Name and text of the file that a click downloads."""
    with page.expect_download() as download:
        page.click(selector)
    path = download.value.path()
    return download.value.suggested_filename, path.read_text(encoding="utf-8")


def test_a_table_comes_with_all_its_columns_as_plain_numbers(shared: Page) -> None:
    name, text = saved(shared, "#csv")
    assert name == "by_kind.csv"
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    table = CATALOG["by_kind"].function(load(training_trace()))
    assert list(rows[0]) == [each.name for each in CATALOG["by_kind"].columns]
    assert [row["kind"] for row in rows] == table["kind"].tolist()
    wanted = table["wire_bytes"].tolist()
    assert [float(row["wire_bytes"]) for row in rows] == pytest.approx(wanted)


def test_the_rows_are_those_that_are_found_in_their_order_however_many_are_shown(
    shared: Page,
) -> None:
    shared.click("#tab-calls")
    shared.fill("#search", "all_reduce")
    sort_by(shared, "wait_ns")
    shown = column(shared, 2)
    rows = list(csv.DictReader(io.StringIO(saved(shared, "#csv")[1], newline="")))
    assert len(rows) == 108 > len(shown) == 100
    assert [row["id"] for row in rows[:100]] == shown
    waits = [int(row["wait_ns"]) for row in rows]
    assert waits == sorted(waits, reverse=True)
    sort_by(shared, "module")
    rows = list(csv.DictReader(io.StringIO(saved(shared, "#csv")[1], newline="")))
    assert [row["id"] for row in rows[:100]] == column(shared, 2)


FIELDS = {
    "=1+1": "'=1+1",
    "+1": "'+1",
    "-1": "'-1",
    "@sum": "'@sum",
    "\tx": "'\tx",
    'a,"b"\nc': 'a,"b"\nc',
    "plain": "plain",
}


def test_a_spreadsheet_executes_no_cell(open_page: Open) -> None:
    calls = [
        call(id=number, at=9 * number, until=9 * number + 5, module=text, blocked_ns=5)
        for number, text in enumerate(FIELDS)
    ]
    page = open_page(run_of(calls)).page
    page.click("#tab-calls")
    rows = list(csv.DictReader(io.StringIO(saved(page, "#csv")[1], newline="")))
    assert [row["module"] for row in rows] == list(FIELDS.values())
    assert [row["id"] for row in rows] == list(map(str, range(len(FIELDS))))
    assert {row["wait_ns"] for row in rows} == {""}


def test_the_page_writes_a_cell_as_the_command_line_does(shared: Page) -> None:
    before = ["", "'", " ", "\u200b", "\x00", "\ufeff", "x"]
    after = ("=", "\uff1d", "-", "@", "\t", "\r", "\n", "x", "")
    texts = [f"{first}{second}1" for first in before for second in after]
    written = shared.evaluate("(texts) => texts.map(csvCell)", texts)
    read = [next(csv.reader(io.StringIO(each, newline="")), [""])[0] for each in written]
    assert read == [cell(text) for text in texts]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_comes_as_svg(shared: Page, name: str) -> None:
    filename, text = saved(shared, f"[data-svg={name}]")
    assert filename == f"{name}.svg"
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter())) > 20
    assert "<script" not in text


def test_a_module_s_row_leaves_its_calls_in_the_timeline_and_the_table(shared: Page) -> None:
    drawn = """() => document.getElementById('timeline-picture').data
        .filter((trace) => trace.meta.part === "transfer").flatMap((trace) => trace.x).length"""
    assert shared.evaluate(drawn) == 140
    shared.click("#tab-by_module")
    shared.locator("#table tbody tr", has_text="layers.0").click()
    shared.wait_for_function(f"() => ({drawn})() === 48")
    chip = "#timeline .filter"
    assert shared.inner_text(f"{chip} span") == "Only layers.0: 48 calls"
    assert fields(shared)["module"] == "layers.0"
    assert shared.inner_text("#timeline-shown").startswith("48 calls")
    shared.click("#tab-calls")
    assert shared.locator("#tables .filter").is_visible()
    assert all(name.startswith("layers.0.") for name in column(shared, 6))
    shared.click("#tables .filter button")
    assert shared.locator(chip).is_hidden()
    shared.wait_for_function(f"() => ({drawn})() === 140")
    assert len(column(shared, 6)) == 100
    assert "module" not in fields(shared)


def test_the_row_of_the_entire_run_removes_the_filter(shared: Page) -> None:
    shared.click("#tab-by_module")
    shared.locator("#table tbody tr", has_text="layers.0").click()
    shared.locator("#table tbody tr").first.click()
    assert shared.locator("#timeline .filter").is_hidden()
