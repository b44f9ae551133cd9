from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.analyze.notices import table as notices
from commtrace.figures import PICTURES, pictures
from commtrace.figures.theme import DARK, TITLE_PIXELS
from tests.commtrace.analyze.devices.devices import device_trace
from tests.commtrace.analyze.pipelines.programs import piped_trace
from tests.commtrace.analyze.routed import routed_trace
from tests.commtrace.analyze.rows import call, run_of
from tests.commtrace.analyze.training import training_trace

EVERY = pytest.mark.parametrize("name", PICTURES)
OF_DEVICES = ("gpu_time",)
OF_EXPERTS = ("splits", "expert_load")
OF_PIPELINES = ("pipeline_schedule",)


def run(name: str) -> Frames:
    """A run that has something in a picture."""
    if name in OF_PIPELINES:
        return load(piped_trace(0))
    if name in OF_EXPERTS:
        return load(routed_trace(0))
    return load(device_trace() if name in OF_DEVICES else training_trace())


@EVERY
def test_a_picture_of_a_run_has_something_in_it_its_title_and_the_theme(name: str) -> None:
    figure = PICTURES[name].draw(run(name), theme=DARK)
    assert figure.data
    assert figure.layout.title.text == f"<b>{PICTURES[name].title}</b>"
    assert figure.layout.paper_bgcolor == DARK.surface


@EVERY
def test_a_title_takes_room_of_its_own_and_can_be_left_out(name: str) -> None:
    frames = run(name)
    titled, plain = (PICTURES[name].draw(frames, **more) for more in ({}, {"title": ""}))
    assert plain.layout.title.text is None
    assert titled.layout.margin.t >= plain.layout.margin.t + TITLE_PIXELS
    assert titled.layout.height >= plain.layout.height + TITLE_PIXELS


@EVERY
def test_a_picture_of_a_run_without_communication_says_why_it_is_empty(name: str) -> None:
    figure = PICTURES[name].draw(run_of())
    assert not figure.data
    text = " ".join(figure.layout.annotations[0].text.split("<br>"))
    assert text.startswith("No ")
    assert "the program issued no collective" in text


def test_an_empty_picture_gives_the_reason_that_the_trace_has() -> None:
    one_rank = run_of([call(payload_bytes=8, wire_bytes=0)], num_ranks=1)
    text = PICTURES["matrix"].draw(one_rank).layout.annotations[0].text
    assert "The run had one rank" in text


def test_ranks_that_send_nothing_are_in_the_matrix_of_a_run() -> None:
    frames = run_of([call(kind="send", peer=1, wire_bytes=5)], num_ranks=3)
    assert len(PICTURES["matrix"].draw(frames).data[0].z) == 3


def test_a_picture_evaluates_only_its_own_notices_and_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unexpected(frames: Frames) -> Any:
        raise AssertionError("evaluated for a picture that it does not concern")

    frames = load(training_trace())
    before = PICTURES["flame"].draw(frames)
    for name in ("RULES", "MINOR_RULES"):
        rules = [
            (limits, rule if {"flame", notices.EVERYTHING} & {*limits} else unexpected)
            for limits, rule in getattr(notices, name)
        ]
        assert any(rule is unexpected for _, rule in rules)
        monkeypatch.setattr(notices, name, rules)
    analyses = {name: replace(each, function=unexpected) for name, each in CATALOG.items()}
    monkeypatch.setattr(pictures, "CATALOG", analyses)
    assert PICTURES["flame"].draw(frames) == before
    with pytest.raises(AssertionError, match="does not concern"):
        PICTURES["matrix"].draw(frames)


@EVERY
def test_a_picture_is_found_by_its_name_and_asks_a_question(name: str) -> None:
    picture: Any = PICTURES[name]
    assert picture.name == name
    assert picture.question.endswith("?")
    assert not picture.analysis or picture.analysis in CATALOG
