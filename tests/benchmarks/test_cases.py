"""Every case runs plain and on dtensor_core, and what does not run is told."""

from __future__ import annotations

import sys

import pytest

from benchmarks.__main__ import contenders_of, main
from benchmarks.cases import CASES, Case, fake_ranks


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_runs_on_dtensor_core(case: Case) -> None:
    with fake_ranks() as mesh:
        able, unable = contenders_of(case, mesh)
    assert {"plain", "dtensor_core"} <= set(able), unable


def test_a_contender_that_cannot_is_left_out_and_named() -> None:
    def refuse(kit: object, mesh: object):
        raise NotImplementedError("no such rule\nand more")

    case = Case("impossible", "", plain=lambda mesh: lambda: None, sharded=refuse)
    with fake_ranks() as mesh:
        able, unable = contenders_of(case, mesh)
    assert list(able) == ["plain"]
    assert "impossible with torch: NotImplementedError: no such rule" in unable


def test_the_command_prints_times_and_ratios(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "relu", "--rounds", "2", "--turn", "0.001"])
    main()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "relu(x)" in line]
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert all(cell.split()[1] in ("ns", "µs", "ms") for cell in cells[2:5])
    assert all(float(cell) > 0 for cell in cells[5:])


def test_an_unknown_case_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "subtract"])
    with pytest.raises(SystemExit):
        main()
    assert "no case subtract; there are add, mm" in capsys.readouterr().err
