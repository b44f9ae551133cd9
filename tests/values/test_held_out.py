"""Programs that were written without knowledge of the code, and their answers (see held_out)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.values.score import AGREES, PLACE, PROGRAMS, cases, scored

CASES = {each["id"]: each for each in cases()}
QUICK = {
    "a04": PLACE, "a12": PLACE, "a21": PLACE, "b26": PLACE, "j11": PLACE,
    "a44": AGREES, "c39": AGREES, "j42": AGREES, "j44": AGREES,
}  # fmt: skip
"""One for each sort of evidence; `score` runs all."""


@pytest.mark.parametrize("name", CASES)
def test_the_lines_of_a_case_are_lines_of_its_program(name: str) -> None:
    case = CASES[name]
    text = (PROGRAMS / case["program"]).read_text("utf-8").split("\n")
    for place in case.get("lines", ()):
        file, _, line = place.rpartition(":")
        assert file == Path(case["program"]).name
        assert text[int(line) - 1].strip()
    assert not case["mutant"] or case["tensors"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", QUICK)
def test_the_place_is_found(name: str, tmp_path: Path) -> None:
    case: dict[str, Any] = CASES[name]
    found, audit = scored(case, tmp_path)
    assert [each.rstrip("?") for each in found] == [QUICK[name]] * 2
    assert audit == "right"
