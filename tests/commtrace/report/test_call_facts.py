"""The facts in the panel of a call are those that `explain` finds for each call alone."""

from __future__ import annotations

import gzip
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import Frames, load
from commtrace.analyze.findings import detected
from commtrace.analyze.run.matching import partners
from commtrace.analyze.story import Story, explain
from commtrace.analyze.waits.start_skew import start_skew
from commtrace.report.answers import Answers
from commtrace.report.call_facts import (
    call_facts,
    findings_of_calls,
    operators_around,
    unknown_of_sites,
)
from commtrace.report.call_store import call_store
from commtrace.tracefile.sources import MAX_CHARACTERS
from tests.commtrace.analyze.rows import call, group, layouts_trace, op, random_trace, run_of
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.report.reading import decoded

RUNS = {
    "training": load(training_trace(num_steps=2)),
    "random": load(random_trace(5)),
    "layouts": load(layouts_trace(1, num_calls=40)),
    "nested": run_of(
        [call(id=0, op="b", op_id=2), call(id=1, op_id=7), call(rank=1, id=0, op="c", op_id=0)],
        ops=[
            op(id=0, op="a", at=0),
            op(id=1, op="a'", parent=0, at=0),
            op(id=2, op="b", parent=1, at=0),
            op(rank=1, id=0, op="c", parent=0, at=0),
        ],
    ),
    "not numbered": run_of(
        [call(id=0), call(id=1, op_id=0)],
        ops=[op(id=-1, op="a", at=0), op(id=0, op="b", at=0), op(id=-1, op="c", at=0)],
    ),
    "nothing": run_of(),
}


@lru_cache
def stories(frames: Frames) -> dict[Any, Story]:
    """The story of each call of a run, by its row."""
    return {row: explain(frames, call) for row, call in frames.comm.iterrows()}


@pytest.mark.parametrize("frames", RUNS.values(), ids=RUNS)
def test_the_lateness_is_that_of_the_story_of_each_call(frames: Frames) -> None:
    lateness = call_facts(Answers(frames), call_store(frames).sites)["lateness"]
    found = [story.lateness for story in stories(frames).values()]
    expected = {f"{late.rank}:{late.id}": late.sentence() for late in found if late is not None}
    assert lateness == expected


def test_the_page_has_the_lateness_at_the_largest_skews(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commtrace.report.call_facts.MAX_STRAGGLERS", 3)
    frames = RUNS["training"]
    kept = call_facts(Answers(frames), call_store(frames).sites)["lateness"]
    table = start_skew(frames)
    assert [*kept] == table.loc[table["straggler"] >= 0, "call"].head(3).tolist()


@pytest.mark.parametrize("frames", RUNS.values(), ids=RUNS)
def test_findings_and_operators_are_those_of_the_story_of_each_call(frames: Frames) -> None:
    numbers, sets = findings_of_calls(frames)
    around = operators_around(frames)
    every = [finding.title for _, finding in detected(frames)]
    told = [*stories(frames).values()]
    for place in range(0, len(told), 3):
        story = told[place]
        assert [every[each] for each in sets[numbers[place]]] == [
            each.title for each in story.findings
        ]
        names = [each.op for each in story.why.operators]
        if len(names) < 30:
            assert around[place].split("\n") == (names or [""])


def test_operators_that_lie_inside_of_each_other_in_a_circle_come_to_an_end() -> None:
    assert set(operators_around(RUNS["nested"])[-1].split("\n")) == {"c"}


@pytest.mark.parametrize("frames", RUNS.values(), ids=RUNS)
def test_a_call_is_stored_with_its_collective_or_its_partner(frames: Frames) -> None:
    store = call_store(frames)
    columns = decoded(store.head, gzip.decompress(store.body))
    partner = partners(frames)
    wanted = frames.comm.sort_values(["rank", "issue_ns"], kind="stable")
    known = stories(frames)
    for place, (label, row) in enumerate(wanted.iterrows()):
        if row["kind"] in ("send", "recv"):
            other = partner[label]
            expected = frames.comm["id"][other] if other >= 0 else -1
            assert columns["partner_id"][place] == expected
        else:
            assert columns["number"][place] == known[label].number


def test_unknowns_of_a_call_site_are_those_of_the_story() -> None:
    frames = RUNS["random"]
    sites = call_store(frames).sites
    said = dict(zip(sites["reason"].index, unknown_of_sites(frames, sites), strict=True))
    parts = ("operator", "layouts", "candidates")
    store = call_store(frames)
    site = decoded(store.head, gzip.decompress(store.body))["site"]
    wanted = frames.comm.sort_values(["rank", "issue_ns"], kind="stable")
    for place, label in enumerate(wanted.index):
        unknown = stories(frames)[label].unknown
        assert said[site[place]] == "\n".join(
            text for name, text in unknown.items() if name in parts
        )


def test_groups_have_their_members_and_factors_and_findings_their_cards() -> None:
    answers = Answers(RUNS["training"])
    facts = call_facts(answers, call_store(RUNS["training"]).sites)
    (members,) = facts["groups"].values()
    assert members["ranks"] == [0, 1, 2, 3]
    assert members["busbw"]["all_reduce"] == 1.5
    for each in facts["findings"]:
        card = answers.findings.iloc[each["card"]]
        assert (card["rule"], card["advice"]) == (each["rule"], each["advice"])
    assert facts["layouts"]["f32[4,64,256] tp:R"] == "replicated over tp"


def test_a_group_with_unknown_members_has_none() -> None:
    frames = run_of([call(at=0)], groups=[group(ranks=())])
    facts = call_facts(Answers(frames), call_store(frames).sites)
    assert facts["groups"]["g"]["ranks"] == []
    assert facts["groups"]["g"]["busbw"] == {}


def test_no_more_source_lines_are_carried_than_a_recording_keeps() -> None:
    rows = pd.DataFrame(
        {"file": ["a.py", "b.py"], "line": [1, 1], "text": ["x", "y" * (MAX_CHARACTERS + 1)]}
    )
    frames = replace(RUNS["training"], sources=rows)
    facts = call_facts(Answers(frames), call_store(frames).sites)
    assert facts["sources"] == [{"file": "a.py", "line": 1, "text": "x"}]
