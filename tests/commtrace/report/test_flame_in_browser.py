"""Every block of the flame graph can be read, found and zoomed into."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.commtrace.analyze.rows import call, run_of
from tests.commtrace.report.browsing import Open, fields, hover

if TYPE_CHECKING:
    from playwright.sync_api import Page

DATA = "document.getElementById('flame-picture').data[0]"


def test_hovering_over_a_block_shows_its_full_path(shared: Page) -> None:
    block = "g.slice[aria-label^='forward > layers > layers.0 > attention > wo > aten.mm.default:']"
    text = hover(shared, "#flame-picture", block)
    assert "forward > layers > layers.0 > attention > wo > aten.mm.default" in text


def narrow_blocks(page: Page) -> list[str]:
    page.click("#flame-blocks summary")
    return page.locator("#flame-list .path").all_inner_texts()


def test_blocks_without_room_for_their_names_are_listed_with_their_paths(open_page: Open) -> None:
    calls = [call(id=0, at=0, until=9, wire_bytes=1_000_000, module="wide")]
    calls += [
        call(id=n, at=10 * n, until=10 * n + 9, wire_bytes=900 * n, module=f"narrow.{n}")
        for n in range(1, 16)
    ]
    page = open_page(run_of(calls)).page
    listed = narrow_blocks(page)
    assert len(listed) == 10
    assert listed[0] == "forward > narrow > narrow.15" or "narrow.15" in listed[0]
    assert "per rank" in page.inner_text("#flame-list li:first-child .amount")
    page.click("#flame-more")
    assert len(page.locator("#flame-list li").all()) > 15
    target = page.locator("#flame-list button", has_text="narrow.3").first
    target.click()
    page.wait_for_function(f"() => {DATA}.level !== '0'")
    assert fields(page)["block"].startswith("forward/narrow/narrow.3")


def test_few_calls_of_many_ranks_are_counted_in_all_in_the_list(open_page: Open) -> None:
    calls = [call(id=n, module="wide", wire_bytes=1) for n in range(640)]
    calls += [call(id=640 + n, module="narrow", wire_bytes=1) for n in range(3)]
    page = open_page(run_of(calls, num_ranks=64)).page
    page.click("#flame-value [data-value=num_calls]")
    page.fill("#flame-search", "all_reduce")
    page.wait_for_function("() => document.querySelectorAll('#flame-list .amount').length === 2")
    amounts = page.locator("#flame-list .amount").all_text_contents()
    assert sorted(amounts) == ["10 per rank, 99.5 % of all", "3 in all, 0.5 % of all"]


def test_a_search_lists_what_it_finds_and_makes_the_rest_pale(shared: Page) -> None:
    before = shared.evaluate(f"{DATA}.marker.colors")
    shared.fill("#flame-search", "Attention MM")
    shared.wait_for_function(f"before => {DATA}.marker.colors.join() !== before.join()", arg=before)
    found = shared.locator("#flame-list .path").all_inner_texts()
    assert found
    assert all("attention" in path and "mm" in path.lower() for path in found)
    after = shared.evaluate(f"{DATA}.marker.colors")
    names = shared.evaluate(f"{DATA}.labels")
    for name, one, other in zip(names, before, after, strict=True):
        assert (one == other) is (name == "aten.mm.default" and one == other), name
    shared.fill("#flame-search", "no such thing")
    assert "0 blocks found" in shared.inner_text("#flame-blocks summary")
    shared.fill("#flame-search", "")
    shared.wait_for_function(f"before => {DATA}.marker.colors.join() === before.join()", arg=before)


def test_ctrl_and_the_wheel_zoom_one_level_at_a_time(shared: Page) -> None:
    shared.locator("#flame-picture").scroll_into_view_if_needed()
    shared.locator("#flame-picture .slice", has_text="tok_embeddings").first.hover()
    shared.keyboard.down("Control")
    shared.mouse.wheel(0, -100)
    shared.wait_for_function(f"() => {DATA}.labels[{DATA}.ids.indexOf({DATA}.level)] === 'forward'")
    shared.wait_for_timeout(250)
    shared.mouse.wheel(0, 100)
    shared.keyboard.up("Control")
    shared.wait_for_function(f"() => {DATA}.level === '0'")


def test_on_a_narrow_screen_the_label_of_a_block_is_as_narrow(
    open_page: Open, training: Path
) -> None:
    page = open_page(training, viewport={"width": 390, "height": 800}).page
    block = "g.slice[aria-label^='backward > layers > layers.1 > attention > aten.add.Tensor:']"
    text = hover(page, "#flame-picture", block)
    assert "backward > layers > layers.1" in text
    label = page.locator("#flame-picture .hovertext path").first.bounding_box()
    picture = page.locator("#flame-picture").bounding_box()
    assert label is not None
    assert picture is not None
    assert label["x"] >= picture["x"]
    assert label["x"] + label["width"] <= picture["x"] + picture["width"]
