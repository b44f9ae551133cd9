"""The comparison of operators counts their communication, and reports a missed bar."""

from __future__ import annotations

import sys

import pytest
from torch.testing._internal.common_methods_invocations import op_db

from benchmarks import operators
from benchmarks.counting import Sent, counter
from benchmarks.operators import Outcome, Pair, bars, main, pairs, worse
from tests.opdb.runs import RUNS

CHEAP = Outcome(passes=True, sent=Sent(0, 0, 0), sharded=1)
DEAR = Outcome(passes=True, sent=Sent(2, 64, 96), sharded=0)
FAILED = Outcome(passes=False)


def _kept(*found: Pair) -> dict[str, bool]:
    return {bar.name: bar.kept for bar in bars(found) if bar.kept is not None}


def _pair(ours: Outcome, torchs: Outcome, operator: str = "mm", sharded: bool = True) -> Pair:
    return Pair(operator, "here", sharded, ours, torchs)


def test_sending_less_and_keeping_more_sharded_keeps_every_bar() -> None:
    assert all(_kept(_pair(CHEAP, DEAR)).values())


def test_sending_more_and_keeping_less_sharded_misses_the_bars() -> None:
    kept = _kept(_pair(DEAR, CHEAP))
    assert kept.pop("right combinations")
    assert not any(kept.values())


def test_what_only_one_gets_right_is_not_compared_but_what_we_lose_is_reported() -> None:
    kept = _kept(_pair(CHEAP, CHEAP), _pair(DEAR, FAILED), _pair(FAILED, CHEAP))
    assert [name for name, is_kept in kept.items() if not is_kept] == ["right combinations"]


def test_the_operators_that_do_worse_come_worst_first_with_an_example() -> None:
    slightly = Outcome(passes=True, sent=Sent(1, 8, 8), sharded=1)
    found = [_pair(slightly, CHEAP, "add"), _pair(DEAR, CHEAP), _pair(CHEAP, DEAR, "sub")]
    assert worse(found) == [("mm", 64, 2, 1, "here"), ("add", 8, 1, 0, "here")]


def test_both_are_measured_on_the_same_layouts_by_what_they_send() -> None:
    (info,) = [info for info in op_db if info.name == "mm"]
    with counter() as count:
        found = list(pairs(info, RUNS["forward"], count, samples=1, combinations=100))
    assert all(pair.ours.passes and pair.torchs.passes for pair in found)
    full = [pair for pair in found if not pair.sharded]
    assert [pair.ours.sent.collectives + pair.torchs.sent.collectives for pair in full] == [0]
    assert any(pair.ours.sharded and pair.torchs.sharded for pair in found)
    moving = [pair for pair in found if pair.ours.sent.collectives]
    assert moving
    assert all(pair.ours.sent.elements and pair.ours.sent.wire_bytes for pair in moving)


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["operators", *arguments, "--samples", "1"])
    main()


def test_the_command_prints_both_totals_and_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(monkeypatch, "--only", "neg", "--check")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "sharded results" in line]
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert int(cells[1]) >= int(cells[2]) > 0
    assert cells[4] == "ok"


def test_a_check_ends_with_an_error_where_a_bar_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "SILENT_PER_CENT", 101)
    _run(monkeypatch, "--only", "neg")
    with pytest.raises(SystemExit) as ended:
        _run(monkeypatch, "--only", "neg", "--check")
    assert ended.value.code == 1
