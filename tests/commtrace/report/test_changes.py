"""The changes that would help, at the top of the page."""

from __future__ import annotations

import pytest

import commtrace.report.replayed_part as module
from commtrace.analyze import Frames, load
from commtrace.report import render_page
from commtrace.report.answers import Answers
from commtrace.report.changes import Help, help_of
from commtrace.report.tiles import NOT_KNOWN
from commtrace.selection import WHOLE_RUN, Selection
from tests.commtrace.analyze.replaying import barrier_run
from tests.commtrace.analyze.rows import call, run_of
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.report.reading import data, elements, text


def help_on(frames: Frames, selection: Selection = WHOLE_RUN) -> Help:
    return help_of(Answers(frames), selection)


def test_the_tile_is_the_best_change_and_leads_to_the_section() -> None:
    helps = help_on(barrier_run())
    tile, best = helps.tile, helps.cards[0]
    assert (tile.title, tile.value, tile.target) == ("Best change saves", best.saves, "whatif")
    assert tile.note.startswith(f"of a step of 100 ms ({best.share}): {best.title[:40]}")
    assert tile.note.endswith(" …")
    assert len(tile.note) <= 130


def test_a_card_has_times_share_extent_and_command() -> None:
    helps = help_on(barrier_run())
    assert helps.step == "step 100 ms, of 4 steady steps"
    assert helps.bound_by.startswith("on the critical path: host work")
    (first,) = [each for each in helps.cards if each.title.startswith("In most steps, 4 calls")]
    assert (first.times, first.saves, first.share) == ("100 ms → 90 ms", "10 ms", "10%")
    assert (first.bound, first.facts) == ("", ("8 calls",))
    assert first.commands == ("commtrace whatif RUN 'remove where finding=2'",)
    assert [card.bound for card in helps.cards].count("limit") == 1
    assert helps.cards[-1].meaning.startswith("limit: ")


def test_the_cure_of_a_finding_links_to_it_and_leaves_the_advice_there() -> None:
    frames = barrier_run()
    shown = Answers(frames).findings["title"].tolist()
    cards = {card.title: card for card in help_on(frames).cards}
    (cured,) = [card for title, card in cards.items() if title.startswith("In most steps, 4 calls")]
    number = next(n for n, title in enumerate(shown, 1) if title == cured.title)
    assert (cured.finding, cured.how) == (f"finding-{number}", "")
    assert f'<h3><a href="#finding-{number}">{cured.title}</a>' in render_page(frames)
    assert [card.finding for card in cards.values() if card.bound == "limit"] == [""]


def test_the_command_of_a_part_names_the_part() -> None:
    steps = help_on(barrier_run(), Selection(steps=(1, 2)))
    assert steps.cards[0].commands[0].endswith(" --steps 1:2")
    window = help_on(barrier_run(), Selection(window_ns=(100_000_000, 300_000_000)))
    assert window.cards[0].commands[0].endswith(" --window 100000000ns:300000000ns")


def test_where_nothing_helps_the_tile_says_what_the_run_is_bound_by() -> None:
    calls = [
        call(rank=rank, id=n, seq=n, at=9 * n, until=9 * n, blocked_ns=0)
        for rank in range(2)
        for n in range(3)
    ]
    tile = help_on(run_of(calls)).tile
    assert tile.value == "nothing"
    assert tile.note == (
        "no change that was replayed saves more than steps vary; "
        "on the critical path: host work 100%"
    )


@pytest.mark.parametrize(
    ("frames", "note"),
    [
        (run_of([call(), call(rank=1)]), "the time of issue is unknown for all calls"),
        (run_of(), "there is no call to replay"),
        (run_of(num_ranks=0, groups=[]), "there is no call to replay"),
    ],
    ids=["untimed", "no calls", "no ranks"],
)
def test_a_run_that_cannot_be_replayed_says_why(frames: Frames, note: str) -> None:
    helps = help_on(frames)
    assert (helps.tile.value, helps.tile.note, helps.cards) == (NOT_KNOWN, note, ())
    made = render_page(frames)
    assert helps.lacking in text(made)
    # The number of findings takes the place of the best change.
    assert "Best change saves" not in text(made)
    assert "<h2>Findings</h2>" in made


def test_of_many_calls_some_steps_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CALLS", 8)
    frames = barrier_run(6)
    helps = help_on(frames)
    assert helps.step == "step 100 ms, of 2 steady steps, from 2 to 3"
    assert helps.cards[0].commands[0].endswith(" --steps 2:3")
    assert len(Answers(frames)["whatif"]) >= len(helps.cards)
    monkeypatch.setattr(module, "MOST_CALLS_OF_A_STEP", 3)
    assert help_on(barrier_run(6)).lacking == (
        "Too much to replay for a page: 4 calls in a step. Use commtrace whatif --window."
    )
    assert "24 calls, no steps" in help_on(barrier_run(6, num_marked=0)).lacking


def test_the_page_has_the_section_before_the_findings_and_the_table() -> None:
    made = render_page(load(training_trace()))
    sections = [each["id"] for tag, each in elements(made) if tag == "section"]
    assert sections.index("whatif") + 1 == sections.index("findings")
    assert 'href="#whatif"' in made
    (table,) = [each for each in data(made)["tables"] if each["name"] == "whatif"]
    assert table["topic"] == "Findings"
    assert table["num_rows"] == len(Answers(load(training_trace()))["whatif"])
    assert "Best change saves" in text(made)


def test_the_page_of_a_replayed_run_says_so_at_the_top() -> None:
    frames = barrier_run(run={"replayed": "remove where kind=<b>"})
    made = render_page(frames)
    above, _, _ = made.partition('<div class="tiles')
    assert "Replayed, not recorded: with remove where kind=&lt;b&gt;." in above
    assert "Replayed" not in render_page(barrier_run()).partition('<div class="tiles')[0]


def test_names_of_a_trace_are_text() -> None:
    hostile = "<img src=x onerror=hacked()>"
    frames = barrier_run(run={"command": hostile})
    assert hostile not in render_page(frames)
