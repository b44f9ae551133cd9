"""The page of a run with pipeline stages: its schedule, and the tables of its idle time."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from commtrace.analyze import load
from commtrace.analyze.pipelines.stages import idle_summary, pipeline_stages
from commtrace.report import write_report
from tests.commtrace.analyze.pipelines.programs import (
    Program,
    equal,
    one_f_one_b,
    trace_of_programs,
)
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.report.browsing import Open, Opened
from tests.commtrace.report.conftest import opened_in
from tests.commtrace.report.test_downloads import saved

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SLOW = Program(one_f_one_b(4, 8), lambda act: equal(act) * (2 if act.stage == 2 else 1))
TRACE = trace_of_programs([[SLOW]] * 3)
DEADLINE_S = 20
PICTURE = "document.getElementById('pipeline_schedule-picture')"


@pytest.fixture(scope="module")
def opened(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    path = write_report(TRACE, tmp_path_factory.mktemp("pipelines") / "report.html")
    found = opened_in(browser, path)
    yield found
    found.page.context.close()


@pytest.fixture
def page(opened: Opened) -> Iterator[Page]:
    yield opened.page
    assert opened.errors == []


def test_the_page_says_and_draws_how_the_schedule_ran(page: Page) -> None:
    text = idle_summary(pipeline_stages(load(TRACE)))
    assert page.inner_text("#pipeline_schedule .sentence") == text
    assert page.locator("nav a[href='#pipeline_schedule']").is_visible()
    drawn: list[Any] = page.evaluate(f"{PICTURE}.data.map((each) => each.meta)")
    assert {(each["action"], each["is_ideal"]) for each in drawn} == {
        (action, is_ideal) for action in ("forward", "backward") for is_ideal in (False, True)
    }
    name, svg = saved(page, "[data-svg=pipeline_schedule]")
    assert (name, "<svg" in svg) == ("pipeline_schedule.svg", True)


def test_the_tables_of_pipelines_are_on_the_page(page: Page) -> None:
    page.click("#tab-bubbles")
    page.wait_for_selector("#table tbody tr td:nth-child(4)")
    causes = page.locator("#table tbody tr td:nth-child(4)").all_inner_texts()
    assert {"imbalance", "warm up", "drain"} == set(causes)
    page.click("#tab-pipeline_stages")
    assert page.locator("#table tbody tr").count() == 4


def test_a_call_is_shown_with_its_stage_and_micro_batch(page: Page) -> None:
    page.click("#tab-calls")
    page.fill("#search", "send")
    page.click("#table tbody tr:first-child")
    text = page.inner_text("#detail")
    assert re.search(r"pipeline\s+stage \d, micro-batch \d, (forward|backward)", text), text
    page.keyboard.press("Escape")


@pytest.mark.parametrize("width", [1280, 800])
def test_the_picture_is_as_wide_as_its_section(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    deadline = time.monotonic() + DEADLINE_S
    while page.evaluate("document.documentElement.scrollWidth") > width:
        assert time.monotonic() < deadline
        page.wait_for_timeout(50)
    assert width / 2 < page.evaluate(f"{PICTURE}.clientWidth") < width


def test_the_page_of_a_run_without_pipelines_has_no_section_for_them(open_page: Open) -> None:
    opened = open_page(load(training_trace()))
    for place in ("#pipeline_schedule", "#tab-bubbles", "nav a[href='#pipeline_schedule']"):
        assert opened.page.locator(place).count() == 0
