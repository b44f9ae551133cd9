"""Programs that were written without knowledge of the code, and their answers (see held_out)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.tracefile import read_trace
from tests.hangs.score import PROGRAMS, RIGHT, answers, judged, recorded

ANSWERS = {each["file"].partition("/")[0]: each for each in answers([])}
QUICK = ("h11_bcast_root", "h20_store_wait", "h24_exc_thread", "g11_early_agreed")
"""One for each sort of cause; `score` runs all."""


@pytest.mark.parametrize("name", ANSWERS)
def test_the_lines_of_an_answer_are_lines_of_its_program(name: str) -> None:
    answer = ANSWERS[name]
    assert (PROGRAMS / answer["file"]).is_file()
    places = [answer.get(f"{each}_line") for each in ("culprit", "waiting", "branch")]
    for place in filter(None, places):
        file, _, line = place.rpartition(":")
        lines = (PROGRAMS / name / file).read_text("utf-8").split("\n")
        assert lines[int(line) - 1].strip()
    assert answer["healthy"] or 0 <= min(answer["culprit_ranks"]) < answer["world"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", QUICK)
def test_the_answer_is_found(name: str, tmp_path: Path) -> None:
    answer: dict[str, Any] = ANSWERS[name]
    path, alarm = recorded(answer, tmp_path, timeout_s=45)
    score, verdict = judged(answer, load(read_trace(path)))
    assert score == RIGHT, verdict
    expected = ",".join(map(str, answer["culprit_ranks"])) if not answer["healthy"] else "-"
    assert alarm == expected
