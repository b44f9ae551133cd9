"""A short run of the fuzzer finds no defect, and finds each kind of defect that is injected."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG
from commtrace.schema import TABLES
from commtrace.tracefile import read_trace, write_trace
from tests.fuzz import examine as examining
from tests.fuzz.__main__ import Worker, again, keep, run, summary
from tests.fuzz.cases import LOOKING, OUT_FOLDER, Case, looks
from tests.fuzz.examine import examine
from tests.fuzz.seeds import seeds
from tests.fuzz.unusual import unusual_run

NUM_CASES = 28
"""One cycle of all kinds."""


def test_a_short_run_finds_no_defect() -> None:
    numbers = range(0, NUM_CASES, 2)
    found = run(5, numbers, jobs=2, memory=2 << 30, tell=lambda found, news: None)
    assert [(each.number, each.arguments, each.defect) for each in found if each.defect] == []
    assert {each.number for each in found} == {*numbers}
    assert {each.code for each in found} >= {0, 3}
    assert len({each.command for each in found}) >= 12
    assert len(summary(found)) > len({each.command for each in found})


def test_every_table_and_every_choice_of_a_command_has_its_turn() -> None:
    asked = [words for number in range(1500) for words in looks("TRACE", number)]
    words_of: dict[str, set[str]] = {command: set() for command in LOOKING}
    for words in asked:
        command = f"{words[0]} TRACE" if f"{words[0]} TRACE" in LOOKING else words[0]
        words_of[command].update(words)
    assert words_of["table TRACE"] >= {*CATALOG, "--json", "--csv"}
    for command, choices in LOOKING.items():
        named = {word for each in choices for options in each for word in options}
        assert words_of[command] >= named, command
    assert [words for words in asked if words[0] == "diff"].count(
        ("diff", "sound.json", "TRACE", "sound.json", "-o", "out.html", "--force")
    )
    assert looks("TRACE", 7) == looks("TRACE", 7)


def test_an_export_without_one_of_its_tables_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exported(case: Case, folder: Path) -> list[tuple[str, ...]]:
        (folder / "sound.json").write_bytes(seeds().run)
        return [("export", "sound.json", "--to", "csv", "-o", OUT_FOLDER)]

    monkeypatch.setattr(Case, "write", exported)
    assert defects(Case(5, 0), tmp_path) == []
    assert not (tmp_path / OUT_FOLDER).exists()
    kept = {name: columns for name, columns in TABLES.items() if name != "steps"}
    monkeypatch.setattr("commtrace.exporters.tables.TABLES", kept)
    assert defects(Case(5, 0), tmp_path) == ["no table steps was written"]


def first(kind: str, seed: int = 5) -> Case:
    return next(case for n in range(NUM_CASES) if (case := Case(seed, n)).kind == kind)


def defects(case: Case, folder: Path) -> list[str]:
    return [each.defect for each in examine(case, folder) if each.defect]


@pytest.mark.parametrize("number", [92, 1975, 7456, 7899])
def test_a_file_is_spoiled_several_times(number: int, tmp_path: Path) -> None:
    """A count that was spoiled before, and a list that was put into itself."""
    assert Case(1, number).write(tmp_path)


def fails(error: BaseException) -> Any:
    def failing(*_: Any, **__: Any) -> Any:
        raise error

    return failing


def test_a_traceback_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commtrace.tracefile.read_trace", fails(ZeroDivisionError("injected")))
    monkeypatch.setattr("commtrace.tracefile.read_parts", fails(ZeroDivisionError("injected")))
    assert any(
        each.startswith("traceback: ZeroDivision") for each in defects(first("spools"), tmp_path)
    )


def test_an_output_that_is_destroyed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from commtrace.errors import TraceError

    def destroying(folder: Path) -> Any:
        Path("out").write_text("half")
        raise TraceError("asked", found="found", why="why", attempt="try")

    monkeypatch.setattr("commtrace.tracefile.read_parts", destroying)
    assert "the output that was there is destroyed" in defects(first("spools"), tmp_path)


def test_an_error_without_all_its_parts_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from commtrace.errors import TraceError

    monkeypatch.setattr("commtrace.tracefile.read_parts", fails(TraceError("asked", found="x")))
    assert any("without   why: ,   try: " in each for each in defects(first("spools"), tmp_path))


def test_a_hang_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "TIME_LIMIT_S", 1)
    monkeypatch.setattr(examining, "WAITS", 2)
    monkeypatch.setattr("commtrace.tracefile.read_parts", lambda folder: time.sleep(20))
    assert any(each.startswith("hang") for each in defects(first("spools"), tmp_path))


def test_memory_out_of_proportion_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from commtrace.errors import TraceError

    def wasteful(folder: Path) -> Any:
        assert len(bytes(range(256)) * (120 << 12)) == 120 << 20
        raise TraceError("asked", found="found", why="why", attempt="try")

    monkeypatch.setattr(examining, "MOST_GROWTH_BYTES", 20 << 20)
    monkeypatch.setattr("commtrace.tracefile.read_parts", wasteful)
    assert any(each.startswith("memory: ") for each in defects(first("spools"), tmp_path))


def test_a_process_that_dies_is_a_defect_and_the_other_cases_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = [each for batch in Worker(5, [0, 1], memory=0).outcomes() for each in batch]
    assert [each.defect[:6] for each in outcomes] == ["crash:"]


def test_unusual_runs_are_accepted_and_hardly_alike(tmp_path: Path) -> None:
    sizes = []
    for number in range(60):
        written = write_trace(unusual_run(random.Random(number)), tmp_path / "run.json")
        trace = read_trace(written)
        sizes.append(tuple(trace.num_rows(name) for name in trace.tables))
    assert len(set(sizes)) > 20
    assert min(num_calls for num_calls, *_ in sizes) == 0


def test_a_case_is_the_same_each_time_and_is_kept_with_its_command(tmp_path: Path) -> None:
    case = first("run")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        case.write(tmp_path / name)
    texts = [(tmp_path / name / "run.json").read_bytes() for name in ("a", "b")]
    assert texts[0] == texts[1]
    outcome = examining.Outcome("run", case.number, "info", "info run.json", 3, "injected")
    kept = keep(5, outcome, tmp_path / "kept")
    assert (kept / "run.json").read_bytes() == texts[0]
    assert again(5, outcome) in (kept / "defect.txt").read_text()
