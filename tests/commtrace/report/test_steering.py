"""Timeline, flame graph and tables by keys and wheel, as users of Perfetto expect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.commtrace.report.browsing import fields, x_range

if TYPE_CHECKING:
    from playwright.sync_api import Page

LEVEL = "document.getElementById('flame-picture').data[0].level"


def span(page: Page) -> float:
    start, end = x_range(page)
    return end - start


def pressed(page: Page, *keys: str) -> list[float]:
    for key in keys:
        page.keyboard.press(key)
    page.wait_for_timeout(150)
    return x_range(page)


@pytest.mark.parametrize(("nearer", "wider"), [("w", "s"), ("+", "-"), ("=", "-")])
def test_keys_zoom_about_the_middle(shared: Page, nearer: str, wider: str) -> None:
    shared.focus("#timeline-picture")
    start, end = x_range(shared)
    near = pressed(shared, nearer, nearer)
    assert near[1] - near[0] == pytest.approx(0.49 * (end - start))
    assert sum(near) == pytest.approx(start + end)
    assert pressed(shared, wider, wider) == pytest.approx([start, end])
    assert pressed(shared, wider) == pytest.approx([start, end])


@pytest.mark.parametrize(("later", "earlier"), [("d", "a"), ("ArrowRight", "ArrowLeft")])
def test_keys_move_as_far_as_the_run_goes(shared: Page, later: str, earlier: str) -> None:
    shared.focus("#timeline-picture")
    whole = x_range(shared)
    start, end = pressed(shared, "w", "w", "w")
    moved = pressed(shared, later)
    assert moved[0] - start == pytest.approx(0.2 * (end - start))
    assert pressed(shared, earlier) == pytest.approx([start, end])
    assert pressed(shared, *(earlier,) * 12)[0] == pytest.approx(whole[0])
    assert span(shared) == pytest.approx(end - start)


def test_nothing_happens_while_somebody_types(shared: Page) -> None:
    before = x_range(shared)
    shared.focus("#search")
    shared.keyboard.type("wasd?f+-")
    assert shared.input_value("#search") == "wasd?f+-"
    shared.wait_for_timeout(150)
    assert x_range(shared) == before
    assert shared.evaluate("document.getElementById('help').open") is False


def test_a_key_goes_to_the_picture_under_the_pointer(shared: Page) -> None:
    shared.locator("#timeline-picture").scroll_into_view_if_needed()
    shared.hover("#timeline-picture .nsewdrag")
    before = span(shared)
    pressed(shared, "w")
    assert span(shared) < before
    shared.locator("#flame-picture").scroll_into_view_if_needed()
    shared.locator("#flame-picture .slice", has_text="tok_embeddings").first.hover()
    near = span(shared)
    pressed(shared, "w")
    assert shared.evaluate(LEVEL) != "0"
    assert span(shared) == near


@pytest.mark.parametrize("where", [0.25, 0.75])
def test_ctrl_and_the_wheel_zoom_at_the_pointer(shared: Page, where: float) -> None:
    shared.locator("#timeline-picture").scroll_into_view_if_needed()
    box = shared.locator("#timeline-picture .nsewdrag").first.bounding_box()
    assert box is not None
    start, end = x_range(shared)
    at = start + where * (end - start)
    shared.mouse.move(box["x"] + where * box["width"], box["y"] + box["height"] / 2)
    shared.keyboard.down("Control")
    shared.mouse.wheel(0, -300)
    shared.wait_for_timeout(200)
    shared.keyboard.up("Control")
    near = x_range(shared)
    assert near[1] - near[0] < 0.6 * (end - start)
    assert near[0] + where * (near[1] - near[0]) == pytest.approx(at, abs=0.01 * (end - start))
    assert shared.evaluate("window.devicePixelRatio") == 1


def test_the_wheel_alone_scrolls_and_with_shift_moves(shared: Page) -> None:
    shared.locator("#timeline-picture").scroll_into_view_if_needed()
    shared.hover("#timeline-picture .nsewdrag")
    before, top = x_range(shared), shared.evaluate("window.scrollY")
    shared.mouse.wheel(0, 120)
    shared.wait_for_function("top => window.scrollY > top", arg=top)
    assert x_range(shared) == before
    shared.hover("#timeline-picture .nsewdrag")
    near = pressed(shared, "w", "w", "w")
    shared.keyboard.down("Shift")
    shared.mouse.wheel(0, 100)
    shared.wait_for_timeout(200)
    shared.keyboard.up("Shift")
    assert x_range(shared)[0] > near[0]
    assert span(shared) == pytest.approx(near[1] - near[0])


def test_calls_are_reached_and_opened_by_keys(shared: Page) -> None:
    shared.focus("#timeline-picture")
    said = "#timeline-status"
    assert "Press . for a call" in shared.inner_text(said)
    pressed(shared, ".")
    assert shared.inner_text(said).startswith("broadcast on rank 0, call 0")
    pressed(shared, ".")
    assert shared.inner_text(said).startswith("all_reduce on rank 0, call 1, in tok_embeddings")
    pressed(shared, "ArrowDown")
    assert shared.inner_text(said).startswith("all_reduce on rank 1, call 1")
    pressed(shared, ",")
    assert shared.inner_text(said).startswith("broadcast on rank 1, call 0")
    before = span(shared)
    pressed(shared, "f")
    assert span(shared) < before / 3
    pressed(shared, "Enter")
    assert shared.inner_text("#detail-title") == "broadcast on rank 1, call 0"
    assert fields(shared)["call"] == "1:0"
    pressed(shared, "Escape")
    assert shared.locator("#detail").is_hidden()
    assert shared.evaluate("document.activeElement.id") == "timeline-picture"


def test_f_shows_the_entire_run_if_no_call_is_selected(shared: Page) -> None:
    shared.focus("#timeline-picture")
    before = x_range(shared)
    pressed(shared, "w", "w", "d")
    assert pressed(shared, "f") == pytest.approx(before)


def test_tab_reaches_the_flame_graph_the_timeline_and_a_row(shared: Page) -> None:
    reached = shared.evaluate(
        """() => [...document.querySelectorAll("[tabindex='0']")]
            .filter((each) => each.offsetParent !== null || each.ownerSVGElement)
            .map((each) => each.id || each.closest("[id]").id)"""
    )
    shared.click("#tab-calls")
    for name in ("flame-picture", "timeline-picture"):
        assert reached.count(name) == 1, (name, reached)
    assert shared.locator("#table tbody tr[tabindex='0']").count() == 1
    shared.focus("#table tbody tr[tabindex='0']")
    pressed(shared, "ArrowDown", "ArrowDown", "Enter")
    assert shared.inner_text("#detail-title").endswith("call 2")


def test_blocks_have_names_and_are_walked_by_arrow_keys(shared: Page) -> None:
    shared.focus("#flame-picture [tabindex='0']")

    def label() -> str:
        return shared.evaluate("document.activeElement.getAttribute('aria-label')")

    pressed(shared, *("ArrowUp",) * 8)
    assert label().startswith("all communication: ")
    pressed(shared, "ArrowDown")
    assert label().startswith("forward: ")
    pressed(shared, "ArrowRight")
    assert label().startswith("backward: ")
    pressed(shared, "ArrowLeft", "ArrowDown", "ArrowDown")
    assert label().startswith("forward > layers > layers.0: ")
    assert shared.inner_text("#flame-status").startswith("forward > layers > layers.0: ")
    pressed(shared, "Enter")
    assert fields(shared)["block"] == "forward/layers/layers.0"
    assert label().startswith("forward > layers > layers.0: ")
    pressed(shared, "s")
    assert fields(shared)["block"] == "forward/layers"
    pressed(shared, "f")
    assert shared.evaluate(LEVEL) == "0"


def test_focus_is_to_be_seen(shared: Page) -> None:
    shared.keyboard.press("Tab")
    shared.focus("#timeline-picture")
    style = "getComputedStyle(document.activeElement)"
    assert shared.evaluate(f"{style}.outlineStyle") == "solid"
    shared.focus("#flame-picture [tabindex='0']")
    shared.keyboard.press("ArrowDown")
    drawn = "document.activeElement.querySelector('path.surface')"
    assert shared.evaluate(f"getComputedStyle({drawn}).strokeWidth") == "3px"


def test_help_lists_every_key_and_closes_again(shared: Page) -> None:
    shared.keyboard.press("?")
    text = shared.inner_text("#help")
    for said in ("Timeline", "Flame graph", "Ctrl + wheel", "zoom in", "fit the selected call"):
        assert said in text
    shared.keyboard.press("Escape")
    assert shared.locator("#help").is_hidden()
    shared.locator("[data-help]").first.click()
    assert shared.locator("#help").is_visible()


def test_escape_closes_one_thing_after_the_other(shared: Page) -> None:
    shared.click("#tab-by_module")
    shared.locator("#table tbody tr", has_text="layers.0").click()
    shared.click("#finding-1 [data-evidence]")
    shared.click("#tab-calls")
    shared.locator("#table tbody tr").first.click()
    shown = ("#detail", "#marked", "#timeline .filter")
    for number in range(len(shown)):
        assert [shared.locator(name).is_visible() for name in shown] == [
            place >= number for place in range(len(shown))
        ]
        shared.keyboard.press("Escape")
        shared.keyboard.press(
            "Escape"
        ) if number == 1 else None  # the call stays selected until then
    assert not any(shared.locator(name).is_visible() for name in shown)


def test_the_box_of_steps_says_what_is_in_view(shared: Page) -> None:
    box = "document.getElementById('step').selectedOptions[0].textContent"
    assert shared.evaluate(box) == "Whole run"
    shared.select_option("#step", "1")
    shared.focus("#timeline-picture")
    pressed(shared, "w")
    assert shared.evaluate(box) == "step 1"
    pressed(shared, "s", "s", "s")
    assert shared.evaluate(box) == "steps 0 to 2"
    pressed(shared, "s", "s", "s", "s")
    assert shared.evaluate(box) == "Whole run"
    shared.select_option("#step", "1")
    pressed(shared, *("d",) * 5)
    assert shared.evaluate(box) == "step 2"
    shared.click("#step-before")
    assert shared.evaluate(box) == "step 1"
    shared.click("#step-after")
    assert shared.evaluate(box) == "step 2"
