"""The page from its reader's point of view, in headless Chromium."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import TimeoutError as NotInTimeError

from commtrace.analyze import load
from commtrace.escaping import visible
from commtrace.figures.theme import DARK, LIGHT, readable_on
from commtrace.report import write_report
from commtrace.selection import Selection
from commtrace.units import text_of_bytes, text_of_duration
from tests.commtrace.analyze.replaying import barrier_run
from tests.commtrace.analyze.rows import call, op, run_of, step
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.report.browsing import Open, column, hover, marked, sort_by, x_range

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1><b>'\"&amp;"


@pytest.mark.parametrize(
    "source",
    [
        training_trace(),
        training_trace(world_size=1, detail="collective", num_steps=0, late_rank=-1),
        run_of(),
        run_of(num_ranks=0, groups=[], run={"missing_ranks": [0, 1]}),
        run_of([call(), call(rank=1, kind="made_up", at=5)]),
    ],
    ids=["training", "one rank", "no calls", "no ranks", "hardly anything known"],
)
def test_it_opens_without_a_complaint_or_a_request(open_page: Open, source: Any) -> None:
    opened = open_page(source)
    for tab in opened.page.locator("#tabs button").all():
        tab.click()
    opened.page.wait_for_timeout(100)
    assert opened.errors == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []


def test_nothing_unprintable_of_a_trace_is_shown(open_page: Open) -> None:
    bad = "a\u202eb\x1bc\u200bd\u2066"
    row = call(
        at=0, until=9, kind=bad, module=f"{bad}.0", op=bad, reason=bad, source_file=f"/{bad}",
        source_line=3, source_function=bad, stack=bad, wire_bytes=1, argument=bad, dtype=bad,
    )  # fmt: skip
    page = open_page(run_of([row], run={"command": bad})).page
    for tab in page.locator("#tabs button").all():
        tab.click()
        assert_printable(page)
    page.click("#tab-calls")
    page.click("#table tbody tr")
    page.wait_for_selector("#detail-body dl")
    assert_printable(page)
    assert visible(bad) in page.inner_text("#detail")


def assert_printable(page: Page) -> None:
    text = page.evaluate(
        """[document.body.innerText, ...[...document.querySelectorAll("[title], [aria-label]")].map(
            (each) => `${each.title} ${each.ariaLabel}`)].join(" ")"""
    )
    assert [letter for letter in text if not letter.isprintable() and letter not in "\n\t"] == []


def test_a_complaint_would_be_noticed(open_page: Open) -> None:
    opened = open_page(run_of())
    opened.page.evaluate("setTimeout(() => { throw new Error('injected') })")
    opened.page.wait_for_timeout(100)
    assert any("injected" in error for error in opened.errors)


def test_it_fits_the_window_and_follows_when_that_changes(page: Page) -> None:
    fits = """width => document.documentElement.scrollWidth <= width
        && [...document.querySelectorAll(".picture")].every((place) => {
            const card = place.getBoundingClientRect().width;
            const drawn = place.querySelector(".main-svg").getBoundingClientRect().width;
            const share = width > 900 && place.closest(".pair") ? 0.42 : 0.85;
            return Math.abs(card - drawn) <= 1 && card > share * width;
        })"""
    for width in (1400, 800, 761, 700, 390, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(fits, arg=width)


def test_a_picture_that_is_not_redrawn_yet_does_not_widen_a_narrow_page(page: Page) -> None:
    page.set_viewport_size({"width": 420, "height": 900})
    page.add_style_tag(content=".picture .svg-container { width: 3000px !important; }")
    assert page.evaluate("document.documentElement.scrollWidth") == 420


def test_hovering_over_a_call_shows_its_details(shared: Page) -> None:
    text = hover(shared, "#timeline-picture", ".barlayer .trace:last-child .point path")
    assert "reduce_scatter on rank 0" in text
    assert "payload 262 kB" in text
    assert "last to arrive: rank 2" in text
    assert "train_tp.py:87 in forward" in text


def test_hovering_over_a_block_shows_its_sums(shared: Page) -> None:
    text = hover(shared, "#flame-picture", ".slice")
    assert text.startswith("all communication")
    assert "sent 12.1 MB (100.0% of all)" in text


@pytest.mark.parametrize(
    ("name", "said"),
    [("steps", "step 0"), ("sizes", "all_reduce"), ("waits", "rank 0")],
)
def test_hovering_over_a_pattern_shows_its_numbers(shared: Page, name: str, said: str) -> None:
    assert said in hover(shared, f"#{name}-picture", ".barlayer .point path")


def test_hovering_over_a_point_shows_its_bandwidth(shared: Page) -> None:
    text = hover(shared, "#bandwidth-picture", ".scatterlayer .point")
    assert "busbw" in text
    assert "after the last arrival" in text


def test_the_matrix_shows_who_sends_to_whom(shared: Page) -> None:
    place = "#matrix-picture"
    shared.locator(place).scroll_into_view_if_needed()
    box = shared.locator(f"{place} .heatmaplayer image").bounding_box()
    assert box is not None
    shared.mouse.move(box["x"] + 0.36 * box["width"], box["y"] + 0.12 * box["height"])
    shared.mouse.move(box["x"] + 0.37 * box["width"], box["y"] + 0.13 * box["height"])
    label = shared.locator(f"{place} .hoverlayer .hovertext").first
    label.wait_for()
    assert "rank 0 to rank 1" in (label.text_content() or "")


def test_dragging_zooms_the_timeline_and_a_double_click_comes_back(shared: Page) -> None:
    before = x_range(shared)
    shared.locator("#timeline-picture").scroll_into_view_if_needed()
    box = shared.locator("#timeline-picture .nsewdrag").first.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    shared.mouse.move(box["x"] + 0.4 * box["width"], middle)
    shared.mouse.down()
    shared.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=5)
    shared.mouse.up()
    shared.wait_for_function(
        "([a, b]) => { const r = document.getElementById('timeline-picture').layout.xaxis.range;"
        " return r[1] - r[0] < (b - a) / 4 }",
        arg=before,
    )
    shared.mouse.dblclick(box["x"] + box["width"] / 2, middle)
    shared.wait_for_function(
        "a => document.getElementById('timeline-picture').layout.xaxis.range[0] === a",
        arg=before[0],
    )


def test_a_step_can_be_chosen_and_left_again(shared: Page) -> None:
    frames = load(training_trace(num_steps=3))
    first = frames.steps[frames.steps["rank"] == 0].set_index("step")
    shared.select_option("#step", "1")
    shared.wait_for_function(
        "[...document.querySelectorAll('#timeline-picture .bartext')].some("
        "(text) => text.textContent === 'step 1' && text.getBoundingClientRect().width > 20)"
    )
    start, end = x_range(shared)
    begins = (first.loc[1, "start_ns"] - frames.start_ns) / 1e6
    ends = (first.loc[1, "end_ns"] - frames.start_ns) / 1e6
    assert start < begins < ends < end
    assert end - start < 1.1 * (ends - begins)
    shared.click("#step-after")
    assert shared.input_value("#step") == "2"
    assert x_range(shared)[0] > start
    shared.select_option("#step", "-1")
    assert x_range(shared)[0] < start


def test_a_row_of_the_table_by_step_shows_that_step(shared: Page) -> None:
    shared.click("#tab-by_step")
    shared.locator("#table tbody tr").nth(2).click()
    assert shared.input_value("#step") == "1"


def test_a_long_run_opens_on_one_step(open_page: Open) -> None:
    page = open_page(training_trace(num_steps=9)).page
    assert page.input_value("#step") != "-1"
    start, end = x_range(page)
    assert end - start < 10


def test_too_many_calls_are_drawn_as_shares_until_the_timeline_zooms_in(open_page: Open) -> None:
    opened = open_page(training_trace(world_size=16, num_steps=70))
    page = opened.page
    assert page.input_value("#step") != "-1"
    assert page.locator("#timeline-many").is_hidden()
    page.click("#whole")
    page.locator("#timeline-many").wait_for()
    assert page.input_value("#step") == "-1"
    assert page.locator("#timeline-picture .layer-above image").count() == 1
    text = hover(page, "#timeline-picture", ".layer-above image")
    assert text.startswith("rank ")
    assert "%" in text
    assert "not blocked" not in text
    page.select_option("#step", "7")
    page.locator("#timeline-many").wait_for(state="hidden")
    assert page.locator("#timeline-picture .barlayer .point").count() > 500
    assert opened.errors == []


def test_calls_without_a_known_end_are_drawn_and_empty_pictures_are_sentences(
    open_page: Open,
) -> None:
    page = open_page(run_of([call(rank=rank, at=5) for rank in range(2)])).page
    bars = page.locator("#timeline-picture .barlayer .point path")
    bars.first.wait_for(state="attached")
    assert bars.count() == 2
    assert all(bars.nth(place).bounding_box()["height"] > 5 for place in range(2))
    assert bars.first.evaluate("bar => getComputedStyle(bar).strokeWidth") == "1px"
    assert "no call of known size" in page.locator("#bandwidth .empty").inner_text().lower()
    assert page.locator("#bandwidth button").count() == 0


def test_a_kind_can_be_switched_off(shared: Page) -> None:
    shown = "document.getElementById('timeline-picture').data.length"
    before = shared.evaluate(shown)
    shared.click("#legend button[data-kind=all_reduce]")
    shared.wait_for_function(f"() => {shown} === {before - 2}")
    shared.click("#legend button[data-kind=all_reduce]")
    shared.wait_for_function(f"() => {shown} === {before}")


def test_the_flame_graph_switches_measure_and_phase(shared: Page) -> None:
    trace = "document.getElementById('flame-picture').data[0]"
    shared.click("#flame-value button[data-value=num_calls]")
    shared.wait_for_function(f"{trace}.values[0] === 140")
    shared.click("#flame-phase button[data-value=backward]")
    shared.wait_for_function(f"{trace}.labels[{trace}.ids.indexOf({trace}.level)] === 'backward'")
    assert (
        shared.get_attribute("#flame-phase button[data-value=backward]", "aria-pressed") == "true"
    )
    assert shared.get_attribute("#flame-phase button[data-value='']", "aria-pressed") == "false"
    assert "forward" not in shared.locator("#flame-picture .slice text").all_text_contents()


def test_clicking_a_block_zooms_into_it_and_the_switch_leads_back(shared: Page) -> None:
    shared.locator("#flame-picture").scroll_into_view_if_needed()
    block = shared.locator("#flame-picture .slice", has_text="tok_embeddings").first
    narrow = block.bounding_box()
    block.click()
    shared.wait_for_function(
        "wide => [...document.querySelectorAll('#flame-picture .slice path')]"
        ".every(path => path.getBoundingClientRect().width > wide)",
        arg=2 * narrow["width"] if narrow else 0,
    )
    back = shared.locator("#flame-picture .pathbar", has_text="forward")
    back.click()
    shared.wait_for_function(
        "document.querySelector('#flame-phase [data-value=forward]').ariaPressed === 'true'"
    )
    shared.click("#flame-phase button[data-value='']")
    shared.wait_for_function("document.querySelectorAll('#flame-picture .slice').length > 20")


def test_a_table_sorts_up_down_and_back(shared: Page) -> None:
    before = column(shared, 1)
    assert before[0] == "all_reduce"
    assert sort_by(shared, "kind") == "ascending"
    assert column(shared, 1) == sorted(before)
    assert sort_by(shared, "kind") == "descending"
    assert column(shared, 1) == sorted(before, reverse=True)
    assert sort_by(shared, "kind") is None
    assert column(shared, 1) == before


def test_numbers_sort_by_value_biggest_first_and_unknown_last(shared: Page) -> None:
    assert sort_by(shared, "busbw_bytes_per_s") == "descending"
    assert column(shared, 1)[0] == "broadcast"
    assert column(shared, 1)[-1] == "barrier"
    assert column(shared, 9)[-1] == "–"
    assert sort_by(shared, "busbw_bytes_per_s") == "ascending"
    assert column(shared, 1)[-1] == "barrier"


def test_a_search_keeps_the_rows_that_hold_every_word(shared: Page) -> None:
    shared.click("#tab-calls")
    shared.fill("#search", "ALL_GATHER forward")
    assert set(column(shared, 3)) == {"all_gather"}
    assert set(column(shared, 5)) == {"forward"}
    shared.fill("#search", "all_gather nonsense")
    assert column(shared, 3) == []
    assert "No row contains all of these words." in shared.inner_text("#table")
    shared.fill("#search", "")
    assert len(column(shared, 3)) == 100


def test_more_rows_come_on_request(shared: Page) -> None:
    shared.click("#tab-calls")
    assert "100 of 140 rows" in shared.inner_text("#table .more")
    shared.click("#table .more button")
    assert len(column(shared, 1)) == 140


def test_modules_are_a_tree_that_folds_and_sorts_within_each_branch(page: Page) -> None:
    page.click("#tab-by_module")
    names = column(page, 1)
    assert names[0].endswith("whole run")
    assert [name.strip("▾ ") for name in names[1:4]] == ["layers", "layers.0", "attention"]
    sort_by(page, "module")
    sort_by(page, "module")
    descending = [name.strip("▾ ") for name in column(page, 1)]
    assert descending[1:3] == ["tok_embeddings", "output"]
    assert descending.index("layers.1") < descending.index("layers.0")
    assert descending.index("layers") < descending.index("layers.1")
    page.locator("#table tr", has_text="layers.0").locator("button.twist").click()
    assert len(column(page, 1)) == len(names) - 5
    page.fill("#search", "layers.0.feed")
    assert [name.strip("▾ ") for name in column(page, 1)] == [
        "whole run",
        "layers",
        "layers.0",
        "feed_forward",
        "w2",
        "w1",
    ]


def test_a_call_opens_its_story_and_shows_itself_in_the_timeline(shared: Page) -> None:
    shared.click("#tab-calls")
    shared.fill("#search", "layers.1.attention.wo")
    shared.locator("#table tbody tr").first.click()
    story = shared.inner_text("#detail")
    for said in ("all_reduce on rank 0", "f32[4,64,256] tp:P(sum)", "15 µs, chosen", "train_tp.py"):
        assert said in story
    shared.keyboard.press("Escape")
    assert shared.locator("#detail").is_hidden()
    shared.locator("#table tbody tr").first.press("Enter")
    shared.click("#detail .do button")
    start, end = x_range(shared)
    assert end - start < 2


def test_clicking_a_call_in_the_timeline_opens_its_story(page: Page) -> None:
    page.wait_for_load_state("networkidle")  # until then the layout may shift
    for _ in range(3):
        hover(page, "#timeline-picture", ".barlayer .trace:last-child .point path")
        page.mouse.down()
        page.mouse.up()
        with contextlib.suppress(NotInTimeError):
            page.locator("#detail").wait_for(timeout=15_000)
            break
    assert page.inner_text("#detail-title").startswith("reduce_scatter on rank 0")


@pytest.mark.parametrize(("scheme", "theme"), [("light", LIGHT), ("dark", DARK)])
def test_the_theme_is_the_system_s_until_it_is_switched(
    open_page: Open, training: Path, scheme: str, theme: Any
) -> None:
    page = open_page(training, color_scheme=scheme).page
    other = DARK if theme is LIGHT else LIGHT
    drawn = """() => {
        const trace = (id) => document.getElementById(id).data;
        const flame = trace("flame-picture")[0];
        const place = flame.labels.indexOf("all_reduce");
        return [
            getComputedStyle(document.documentElement).getPropertyValue("--ink").trim(),
            document.getElementById("timeline-picture").layout.paper_bgcolor,
            flame.marker.colors[place],
            flame.textfont.color[place],
            trace("timeline-picture").find((t) => t.meta.kind === "all_reduce").marker.color,
        ];
    }"""

    def wanted(of: Any) -> list[str]:
        blue = of.kinds["all_reduce"]
        return [of.ink, of.surface, blue, readable_on(blue), blue]

    assert page.evaluate(drawn) == wanted(theme)
    page.click("#theme")
    page.wait_for_timeout(300)
    assert page.evaluate(drawn) == wanted(other)
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.evaluate(drawn) == wanted(other)


def test_the_pictures_follow_when_the_system_changes_its_theme(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        "dark => document.getElementById('flame-picture').layout.paper_bgcolor === dark",
        arg=DARK.surface,
    )


def test_names_from_the_trace_do_nothing_but_appear(open_page: Open) -> None:
    names = ("kind", "phase", "module", "module_class", "op", "reason", "source_file", "group")
    hostile = dict.fromkeys(names, HOSTILE)
    frames = run_of(
        [
            call(
                at=0, until=1000, blocked_ns=9, wire_bytes=9, candidates=f'[["{HOSTILE}"', **hostile
            )
        ],
        ops=[op(at=0, duration_ns=2000, phase=HOSTILE)],
        steps=[step(0, 0, 0, 1000)],
        run={"command": HOSTILE, HOSTILE: HOSTILE},
    )
    opened = open_page(frames)
    page = opened.page
    assert page.inner_text("h1") == HOSTILE
    assert page.inner_text("#legend button") == HOSTILE
    label = page.locator("#flame-picture .slice text").last
    assert "<script>" in (label.text_content() or "")
    assert "<script>" in hover(page, "#timeline-picture", ".barlayer .trace:last-child .point path")
    page.locator("#legend button").click()
    page.locator("#legend button").click()
    for tab in page.locator("#tabs button").all():
        tab.click()
    page.click("#tab-calls")
    page.locator("#table tbody tr").first.click()
    assert HOSTILE in page.inner_text("#detail")
    assert page.evaluate("window.hacked") is None
    assert page.locator("body img").count() == 0
    assert page.locator("body script").count() == 1
    assert opened.errors == []


def test_the_policy_stops_a_script_and_a_request_that_got_in_anyway(open_page: Open) -> None:
    opened = open_page(run_of())
    stopped = opened.page.evaluate(
        """async () => {
            const script = document.createElement("script");
            script.textContent = "window.hacked = 1";
            document.body.append(script);
            let answer = "sent";
            try { await fetch("https://example.invalid/"); } catch { answer = "refused"; }
            return [window.hacked === undefined, answer];
        }"""
    )
    assert stopped == [True, "refused"]
    assert any("Content Security Policy" in error for error in opened.errors)
    assert not any(url.startswith("https:") for url in opened.requests)


def test_numbers_read_as_everywhere_else(shared: Page) -> None:
    values = [0, 1, 999, 1000, 1234, 99_949, 99_950, 999_499, 1_000_000, 123_456_789, 5 * 10**10]
    for unit, text in (("bytes", text_of_bytes), ("ns", text_of_duration)):
        found = shared.evaluate(
            "([unit, values]) => values.map((value) => FORMATS[unit](value))", [unit, values]
        )
        assert found == [text(value) for value in values]
    colours = [*LIGHT.kinds.values(), *DARK.kinds.values(), *LIGHT.phases.values()]
    found = shared.evaluate("colours => colours.map(readableOn)", colours)
    assert found == [readable_on(colour) for colour in colours]


def test_a_finding_leads_to_its_calls_in_the_timeline(open_page: Open) -> None:
    opened = open_page(training_trace(num_steps=9))
    page = opened.page
    before = x_range(page)
    answer = page.locator("#finding-list .answer", has_text="Rank 2 delays the other ranks")
    button = answer.locator("button")
    button.click()
    page.locator("#marked").wait_for()
    assert "Rank 2 delays the other ranks" in page.inner_text("#marked-title")
    page.wait_for_function(
        "a => document.getElementById('timeline-picture').data.length > 0", arg=0
    )
    start, end = x_range(page)
    assert end - start < (before[1] - before[0]) / 3
    assert marked(page) == 9
    assert page.inner_text("#marked-place") == "1 of 9"
    page.click("#marked-after")
    assert page.inner_text("#marked-place") == "2 of 9"
    page.wait_for_function(
        "a => document.getElementById('timeline-picture').layout.xaxis.range[0] > a", arg=start
    )
    page.click("#marked-close")
    page.wait_for_function(
        "() => !document.getElementById('timeline-picture').data.some(t => t.meta.part === 'mark')"
    )
    assert page.locator("#marked").is_hidden()
    assert opened.errors == []


def test_the_cure_of_a_finding_leads_to_it(open_page: Open) -> None:
    opened = open_page(barrier_run())
    link = opened.page.locator("#change-list h3 a").first
    target = (link.get_attribute("href") or "").removeprefix("#")
    before = opened.page.url
    link.click()
    box = opened.page.locator(f"#{target}").bounding_box()
    assert box is not None
    assert 0 <= box["y"] < 400
    assert opened.page.url == before
    assert opened.errors == []


def test_a_fault_is_reported_first_and_leads_to_its_calls(open_page: Open) -> None:
    shared = {"seq": 0, "blocked_ns": 100, "until": 2000}
    frames = run_of([call(rank=0, at=0, **shared), call(rank=1, at=5, kind="barrier", **shared)])
    opened = open_page(frames)
    page = opened.page
    assert "1 fault in 2 calls of 2 ranks" in page.inner_text("#check")
    assert "1 fault" in page.inner_text(".tile.bad[href='#check']")
    page.click("#problem-1 button")
    page.wait_for_function(
        "() => document.getElementById('timeline-picture').data.some(t => t.meta.part === 'mark')"
    )
    assert marked(page) == 2
    assert opened.errors == []


def test_a_search_can_name_a_number_of_a_call(shared: Page) -> None:
    shared.click("#tab-calls")
    shared.fill("#search", "rank:3 all_gather")
    assert set(column(shared, 1)) == {"3"}
    assert set(column(shared, 3)) == {"all_gather"}


def test_a_page_of_one_step_shows_that_step_at_its_time(open_page: Open, tmp_path: Path) -> None:
    frames = load(training_trace(num_steps=3))
    path = write_report(frames, tmp_path / "step.html", Selection(steps=(1, 1)))
    page = open_page(path).page
    first = frames.steps[(frames.steps["rank"] == 0) & (frames.steps["step"] == 1)].iloc[0]
    start, end = x_range(page)
    assert start < (first["start_ns"] - frames.start_ns) / 1e6 < end
    assert "step 1" in page.inner_text(".part")
    page.click("#tab-calls")
    assert set(column(page, 4)) == {"1"}
