"""Every case runs on both DTensors, and cases that fail or are too slow are reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.__main__ import contenders_of, main, verdict
from benchmarks.cases import CASES, Case
from benchmarks.kit import OURS, TORCHS, fake_ranks
from benchmarks.measure import Figures


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_runs_on_both(case: Case) -> None:
    with fake_ranks():
        able, unable = contenders_of(case)
    assert set(able) == {OURS, TORCHS}, unable


def test_no_two_cases_have_one_name() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def _refuse(kit: object, mesh: object):
    raise NotImplementedError("no such rule\nand more")


def test_a_contender_that_cannot_is_left_out_and_named() -> None:
    with fake_ranks():
        able, unable = contenders_of(Case("impossible", "", 0.5, _refuse))
    assert not able
    assert "impossible with torch: NotImplementedError: no such rule" in unable


@pytest.mark.parametrize(
    ("ours", "torchs", "expected"),
    [(1.0, 2.0, "ok"), (1.5, 2.0, "missed"), (1.0, None, "torch can't"), (None, 1.0, "missed")],
)
def test_a_verdict_is_about_the_ratio(
    ours: float | None, torchs: float | None, expected: str
) -> None:
    given = {OURS: ours, TORCHS: torchs}
    figures = {name: Figures((value,)) for name, value in given.items() if value is not None}
    assert verdict(Case("some", "", 0.6, _refuse), figures) == expected


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments, "--rounds", "2"])
    main()


def test_the_command_prints_figures_ratio_bar_and_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(monkeypatch, "relu")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "relu(x)" in line]
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert all(cell.split()[1] in ("ns", "µs", "ms") for cell in cells[2:4])
    assert float(cells[4]) > 0
    assert cells[5] == "0.85"
    assert cells[6] in ("ok", "missed")


@pytest.mark.parametrize(("bar", "code"), [(1e-9, 1), (1e9, None)])
def test_a_check_ends_with_an_error_and_the_names_above_their_bar(
    bar: float,
    code: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (relu,) = [case for case in CASES if case.name == "relu"]
    monkeypatch.setattr(command, "CASES", (Case("relu", "", bar, relu.make),))
    if code is None:
        _run(monkeypatch, "--check")
    else:
        with pytest.raises(SystemExit) as ended:
            _run(monkeypatch, "--check")
        assert ended.value.code == code
    assert ("above the bar: relu" in capsys.readouterr().out) == (code is not None)


def test_an_unknown_case_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        _run(monkeypatch, "subtract")
    assert "no case subtract; there are add, mm" in capsys.readouterr().err


def ratio_of_memory() -> float:
    """Memory of a DTensor of dtensor_core relative to torch's."""
    (memory,) = [case for case in CASES if case.name == "memory"]
    with fake_ranks():
        able, _ = contenders_of(memory)
        figures = command.measured(memory, able, command.Effort(num_objects=5000))
    return figures[OURS].ratio(figures[TORCHS])


def test_a_dtensor_takes_no_more_memory_than_torchs() -> None:
    code = "from tests.benchmarks.test_main import ratio_of_memory; print(ratio_of_memory())"
    run = subprocess.run(  # memory that earlier tests of this process have freed would be reused
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert float(run.stdout.split()[-1]) <= 1
