"""The panel of a call shows the same as `commtrace explain`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from commtrace.analyze import Frames, load
from commtrace.analyze.story import Story, explain
from commtrace.event import SourceRow
from commtrace.report import write_report
from commtrace.units import text_of_bytes, text_of_duration
from tests.commtrace.analyze.rows import call, group, op, random_trace, run_of
from tests.commtrace.report.browsing import Open, Opened, fields, go_to
from tests.commtrace.report.conftest import opened_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LINES = "def forward(x):\n    y = norm(x)\n    y = y @ w\n    return y\n\n\n# end"


def story_run() -> Frames:
    """Two redistributions of two steps, a collective that rank 2 misses, a transfer."""
    reported = {
        "source_file": "train.py", "source_line": 42, "source_function": "forward",
        "module": "layers.0.mlp", "module_class": "MLP", "module_call": 3, "phase": "forward",
        "op": "aten.mm.default", "op_id": 1, "argument": "self", "step": 0, "dtype": "float32",
        "source_spec": "f32[8,8] dp:S(0) tp:S(1)", "target_spec": "f32[8,8] dp:R tp:R",
        "reason": "aten.mm.default needs self f32[8,8]", "payload_bytes": 256, "wire_bytes": 128,
        "candidates": '[["tp: R -> R", 1e-4], ["tp: S(0) -> R", 2e-4], ["dp: R -> R", 1e-5]]',
        "native_op": "c10d::_allgather_base_", "planned_bytes": 512, "input_shapes": "[4,8]",
        "stack": "train.py:1 main\ntrain.py:42 forward", "carries": "parameters",
        "parameters": "w,b", "group": "g",
    }  # fmt: skip
    comm = []
    for rank in range(3):
        late = 300_000 * (rank == 1)
        for number, name in enumerate(("g", "h")):
            at = 2_000_000 * number + late
            if (rank, name) == (2, "h"):
                continue
            comm.append(
                call(rank=rank, id=number, seq=0, kind="all_gather", at=at,
                     until=2_000_000 * number + 1_000_000, call_ns=1_000_000 - late,
                     blocked_ns=1_000_000 - late, **(reported | {"group": name}))
            )  # fmt: skip
    transfer = {"kind": "send", "group": "g", "at": 5_000_000, "until": 5_100_000, "seq": 1}
    comm.append(call(rank=0, id=2, peer=2, blocked_ns=100, **transfer))
    comm.append(
        call(rank=2, id=1, peer=0, blocked_ns=50, **(transfer | {"kind": "recv", "at": 5_050_000}))
    )
    return run_of(
        comm,
        num_ranks=3,
        groups=[group("g", range(3)), group("h", range(3), mesh_axis="dp")],
        ops=[
            op(rank=rank, id=number, op=name, parent=number - 1, at=0, duration_ns=9)
            for rank in range(3)
            for number, name in enumerate(("aten.linear.default", "aten.mm.default"))
        ],
        sources=[SourceRow("train.py", 40, LINES)],
        run={"detail": "op"},
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(story_run(), tmp_path_factory.mktemp("story") / "report.html")


@pytest.fixture(scope="module")
def tab(browser: Browser, written: Path) -> Iterator[Opened]:
    opened = opened_in(browser, written)
    yield opened
    opened.page.context.close()


@pytest.fixture
def panel(tab: Opened, written: Path) -> Any:
    """Open the page anew at a call, and return the panel's text."""

    def at(name: str) -> str:
        go_to(tab.page, f"{written.as_uri()}#call={name}")
        return tab.page.inner_text("#detail")

    at.opened = tab
    yield at
    assert tab.errors == []


def page_of(panel: Any) -> Page:
    opened: Opened = panel.opened
    return opened.page


def test_it_shows_the_source_lines_around_the_call(panel: Any) -> None:
    panel("0:0")
    page = page_of(panel)
    lines = page.locator("#detail pre.source").first.inner_text().split("\n")
    assert [line.strip() for line in lines] == [
        *(
            "40def forward(x):",
            "41    y = norm(x)",
            "42    y = y @ w",
            "43    return y",
            "44",
            "45",
        ),
    ]
    assert page.inner_text("#detail .line.this").strip() == "42    y = y @ w"


def test_it_shows_the_place_the_reason_and_the_candidates(panel: Any) -> None:
    text = panel("0:0")
    for said in (
        "train.py:42 in forward",
        "layers.0.mlp (MLP, call 3)",
        "Stack of 2 frames",
        "parameters of w, b",
        "inside of\naten.linear.default",
        "dim 0 sharded over dp, dim 1 sharded over tp",
        "replicated over dp, replicated over tp",
        "100 µs, chosen\ntp: R -> R",
        "200 µs\ntp: S(0) -> R",
        "10 µs, chosen\ndp: R -> R",
        "planned\n512 B",
        "c10d::_allgather_base_",
        "tp (3 ranks: 0, 1, 2, gloo)",
        "collective 0 of the group",
    ):
        assert said in text, said


def test_the_steps_of_a_redistribution_lead_to_each_other(panel: Any) -> None:
    text = panel("0:0")
    assert "Steps of the redistribution" in text
    page = page_of(panel)
    page.get_by_role("button", name="Open call 1 of rank 0").first.click()
    assert page.inner_text("#detail-title") == "all_gather on rank 0, call 1"
    assert fields(page)["call"] == "0:1"


def test_the_peers_stand_by_arrival_and_each_leads_to_its_call(panel: Any) -> None:
    panel("0:0")
    page = page_of(panel)
    rows = page.locator("#detail .arrivals tbody tr").all_inner_texts()
    assert [re.sub(r"\s+", " ", row).strip() for row in rows] == [
        "0:0 this call +0 ns 1 ms 300 µs 700 µs",
        "2:0 +0 ns 1 ms 300 µs 700 µs",
        "1:0 last +300 µs 700 µs 0 ns 700 µs",
    ]
    assert "Rank 1 was the last to arrive, 300 µs after the first" in page.inner_text("#detail")
    story = explain(story_run(), story_run().comm.iloc[0])
    assert story.lateness is not None
    said = story.lateness.sentence()
    assert said == "rank 1 was late: longer work, 300 µs beyond the others' median of 0 ns"
    assert said[0].upper() + said[1:] in page.inner_text("#detail")
    page.locator("#detail .arrivals .link", has_text="1:0").click()
    assert page.inner_text("#detail-title") == "all_gather on rank 1, call 0"
    page.go_back()
    page.wait_for_timeout(200)
    assert page.inner_text("#detail-title") == "all_gather on rank 0, call 0"


def test_a_peer_that_is_missing_is_named_and_the_wait_said_to_be_unknown(panel: Any) -> None:
    text = panel("0:1")
    assert "2 of 3 arrived; no call of rank 2 is in the trace" in text
    assert "The wait time is unknown: the call of rank 2" in text


def test_both_ends_of_a_transfer_meet(panel: Any) -> None:
    panel("0:2")
    page = page_of(panel)
    names = page.locator("#detail .arrivals tbody td:first-child").all_inner_texts()
    assert [name.split("\n")[0] for name in names] == ["0:2", "2:1"]


def test_the_calls_of_the_rank_are_leafed_through(panel: Any) -> None:
    panel("0:0")
    page = page_of(panel)
    assert page.locator("#detail-before").is_disabled()
    page.click("#detail-after")
    page.click("#detail-after")
    assert page.inner_text("#detail-title") == "send on rank 0, call 2"
    assert page.locator("#detail-after").is_disabled()


def test_a_finding_that_counts_the_call_in_stands_there_and_leads_to_its_card(
    page: Page,
) -> None:
    evidence = page.get_attribute("#finding-1 [data-evidence]", "data-evidence") or ""
    page.evaluate("call => { location.hash = `call=${call}` }", evidence.split(",")[0])
    page.locator("#detail").wait_for()
    assert "Rank 2 delays the other ranks" in page.inner_text("#detail .found")
    page.click("#detail .found .link")
    top = "document.getElementById('finding-1').getBoundingClientRect().top"
    assert 0 <= page.evaluate(top) < 500


def said_by_story(story: Story) -> list[str]:
    """Texts that the panel of a call must contain."""
    said = [f"{story.kind} on rank {story.rank}, call {story.id}", *story.unknown.values()]
    if story.time.blocked_ns >= 0:
        said.append(text_of_duration(story.time.blocked_ns))
    if story.time.wait_ns >= 0:
        said.append(text_of_duration(story.time.wait_ns))
    if story.time.slack_ns >= 0:
        slack = f"could take {text_of_duration(story.time.slack_ns)} longer before the run does"
        said.append(slack if story.time.slack_ns else "if it takes longer, so does the run")
    if story.payload_bytes >= 0:
        said.append(text_of_bytes(story.payload_bytes))
    if story.time.busbw_bytes_per_s == story.time.busbw_bytes_per_s:
        said.append(f"{text_of_bytes(story.time.busbw_bytes_per_s)}/s busbw")
    if story.num_alike > 1:
        said.append(f"one of {story.num_alike} such calls")
    if len(story.why.steps) > 1:
        said += [f"{story.rank}:{step.id}" for step in story.why.steps]
    said += [each.title for each in story.findings]
    said += [story.why.source_words, story.why.target_words]
    return [text for text in said if text]


@pytest.mark.parametrize("seed", [3, 8])
def test_the_panel_and_explain_agree_on_any_call(
    open_page: Open, seed: int, tmp_path: Path
) -> None:
    frames = load(random_trace(seed))
    path = write_report(frames, tmp_path / "random.html")
    opened = open_page(path)
    page = opened.page
    for place in range(0, len(frames.comm), max(len(frames.comm) // 25, 1)):
        row = frames.comm.iloc[place]
        story = explain(frames, row)
        page.evaluate(f"location.hash = 'call={story.rank}:{story.id}'")
        title = f"{story.kind} on rank {story.rank}, call {story.id}"
        page.wait_for_function(
            "title => document.getElementById('detail-title').textContent === title", arg=title
        )
        text = " ".join(page.inner_text("#detail").split())
        for said in said_by_story(story):
            assert " ".join(said.split()) in text, (title, said)
        names = page.locator("#detail .arrivals tbody td:first-child").all_inner_texts()
        met = [f"{peer.rank}:{peer.id}" for peer in story.peers]
        assert [name.split("\n")[0] for name in names] == (met if len(met) > 1 else [])
        if story.missing_ranks:
            assert f"no call of rank {', '.join(map(str, story.missing_ranks))} is in" in text
    assert opened.errors == []
