"""Savings of findings: those of a replay, at least 0 and at most the time of the steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commtrace.analyze import Frames, load
from commtrace.analyze.findings import findings, reported
from commtrace.analyze.findings import savings as savings_module
from commtrace.analyze.findings.finding import FAULT, MACHINE, PROGRAM, in_order
from commtrace.analyze.findings.savings import Saving, text_of
from commtrace.analyze.findings.table_rows import savings, share_text, time_text
from commtrace.analyze.measures.steady_steps import is_steady, left_out
from commtrace.analyze.replay import basis
from commtrace.analyze.replay.basis import basis_of
from commtrace.analyze.whatif.asked import asked, what_if
from commtrace.analyze.whatif.table import best_changes
from commtrace.settings import DEFAULTS, THRESHOLDS
from commtrace.tracefile import read_trace
from tests.commtrace.analyze.findings.savings_law import broken_laws
from tests.commtrace.analyze.replaying import MS, NUM_STEPS, barrier_run, barrier_trace
from tests.commtrace.analyze.rows import call, run_of, step, trace_of
from tests.commtrace.analyze.split_run import SplitRun
from tests.commtrace.analyze.test_hard_traces import HARD
from tests.commtrace.analyze.test_second_computation import FAULTY, TRACES
from tests.commtrace.report.test_page_of_stored_run import stored_run

GOLD = sorted((Path(__file__).parents[3] / "gold").glob("*.json"))
PIPELINES = {"bubble_share", "schedule_share"}
"""Thresholds of idle time, which a run may lack."""
KEENER = replace(
    DEFAULTS,
    thresholds={**dict.fromkeys(THRESHOLDS.keys() - PIPELINES, 0.0), "straggler_ratio": 2.0},
)
"""Settings with which rules report small losses, too."""

RUNS: dict[str, Callable[[], Frames]] = {
    **{name: (lambda trace=trace: load(trace)) for name, trace in (TRACES | FAULTY).items()},
    **{name: (lambda frames=frames: frames) for name, frames in HARD.items()},
    **{path.stem: (lambda path=path: load(read_trace(path))) for path in GOLD},
}


@pytest.mark.parametrize("name", RUNS)
def test_no_finding_saves_less_than_nothing_or_more_than_the_steps(name: str) -> None:
    assert broken_laws(RUNS[name]().with_settings(KEENER)) == []


STORED = (
    "training",
    "mesh",
    "device0",
    "piped0",
    "receives",
    "broadcasts",
    "in turn",
    "crossed",
    "flow",
)


@pytest.mark.parametrize("name", STORED)
def test_the_law_holds_for_stored_runs(name: str, tmp_path: Path) -> None:
    stored, _ = stored_run((TRACES | FAULTY)[name], tmp_path / "RUN.comm")
    assert broken_laws(stored.with_settings(KEENER)) == []


@pytest.mark.parametrize(
    ("saving", "broken"),
    [
        (Saving(1e9, 1e9), "redundant_barrier saves 1000000000.0 to 1000000000.0 of 400000000.0"),
        (Saving(-1.0, 5.0), "redundant_barrier saves -1.0 to 5.0 of 400000000.0"),
        (Saving(5.0, 1.0), "redundant_barrier saves 5.0 to 1.0 of 400000000.0"),
    ],
)
def test_other_savings_break_the_law(
    saving: Saving, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savings_module, "_in_all", lambda *_: saving)
    assert any(text.startswith(broken) for text in broken_laws(barrier_run()))


@pytest.mark.parametrize(
    "name",
    [
        *("random0", "routed0", "training", "in turn", "stalled"),
        *("flow", "metrics", "growing", "slow group", "buffers"),
    ],
)
def test_savings_of_a_run_in_parts_are_those_of_the_run_in_memory(name: str) -> None:
    whole = RUNS[name]()
    pd.testing.assert_frame_equal(findings(SplitRun(whole)), findings(whole), rtol=1e-12)


@pytest.mark.parametrize("name", RUNS)
def test_a_saving_is_what_the_steps_of_the_replayed_run_are_shorter(name: str) -> None:
    """Of the run that `commtrace whatif RUN CHANGE -o replayed.json` writes, on hosts."""
    frames = RUNS[name]().with_settings(KEENER)
    frames = replace(frames, kernels=frames.kernels[:0])
    for each in reported(frames):
        row = each.row
        if math.isnan(row["cost_ns"]) or not row["change"] or row["most_ns"] > row["cost_ns"]:
            continue
        answer = what_if(frames, [row["change"]])
        before, after = (_time_of(run, frames, each.rule.is_once) for run in (frames, answer.run))
        if before.empty:
            assert row["cost_ns"] == max(answer.saved_ns[0], 0)
        else:
            saved = float((before - after).sum())
            assert row["cost_ns"] == pytest.approx(min(max(saved, 0), before.sum()), abs=1)


def _time_of(run: Frames, recorded: Frames, is_once: bool) -> pd.Series:
    """Return the mean over ranks of the time of each step that counts."""
    steps = run.timed_steps
    steps = steps if is_once else steps[is_steady(recorded, steps["step"])]
    return (steps["end_ns"] - steps["start_ns"]).groupby(steps["step"]).mean()


def test_even_experts_save_time() -> None:
    """In a run whose transfers take time by their bytes, which the ranks of a test do not."""
    (row,) = (
        each.row
        for each in reported(RUNS["routed0"]().with_settings(KEENER))
        if each.rule.name == "imbalance"
    )
    assert row["change"] == "shrink *0.5239 where finding=1; even where finding=1"
    assert row["cost_ns"] > 0
    assert row["share"] == pytest.approx(0.068, abs=0.001)


def test_in_steps_that_are_alike_a_saving_is_that_of_a_step_times_their_number() -> None:
    frames = barrier_run()
    table = findings(frames)
    assert len(table) == 2
    for row in table.to_dict("records"):
        least, most = what_if(frames, [row["change"]]).saved_ns
        assert (row["cost_ns"], row["most_ns"]) == (NUM_STEPS * least, NUM_STEPS * most)
        assert row["share"] == least / (100 * MS)


def gathers(names: Sequence[str], lasts: Sequence[int], steps: Sequence[int]) -> list[Any]:
    """Gathers of parameters by two ranks, every 100 ns of steps of 1 µs."""
    times = {each: 0 for each in steps}
    found = []
    for n, (name, own, number) in enumerate(zip(names, lasts, steps, strict=True)):
        at = 1000 * number + 100 * times[number]
        times[number] += 1
        found += [
            call(
                rank=rank, id=n, seq=n, step=number, at=at, until=at + own, call_ns=own,
                blocked_ns=own, kind="all_gather", carries="parameters", parameters=name,
                module="m", wire_bytes=8,
            )
            for rank in range(2)
        ]  # fmt: skip
    return found


def steps_of(num: int) -> list[Any]:
    return [step(rank, n, 1000 * n, 1000 * (n + 1)) for rank in range(2) for n in range(num)]


def again(frames: Frames) -> pd.DataFrame:
    table = findings(frames)
    return table[table["rule"] == "repeated_all_gather"]


def test_finding_n_is_the_nth_row_of_the_table() -> None:
    """Though the rule finds them in the order of their names."""
    frames = run_of(gathers("aabb", [10, 10, 50, 50], [0] * 4), steps=steps_of(1))
    table = again(frames)
    assert table["cost_ns"].tolist() == [50, 10]
    first, second = (number + 1 for number in table.index)
    assert table["change"].tolist() == [f"remove where finding={each}" for each in (first, second)]
    rows = [asked(frames, change)[0].rows for change in table["change"]]
    assert [each.tolist() for each in rows if each is not None] == [[6, 7], [2, 3]]
    (both,) = asked(frames, f"remove where finding={second},{first}")
    assert both.rows is not None
    assert both.rows.tolist() == [2, 3, 6, 7]
    every = [each.row["evidence"] for each in reported(frames)]
    assert [every[number - 1] for number in (first, second)] == table["evidence"].tolist()


def test_changes_of_several_findings_are_one_text() -> None:
    assert text_of(
        {"shrink *0.5": [2], "overlap; even": [1, 3], "compute *2 where rank=0": [4]}
    ) == (
        "shrink *0.5 where finding=2; overlap where finding=1,3; even where finding=1,3; "
        "compute *2 where rank=0"
    )


def test_a_stall_counts_though_its_step_is_left_out() -> None:
    """Steps of four calls, each 1 µs after the last rank has worked for 10 µs; one is 1 ms late."""
    calls, ends = [], [0]
    for n in range(20):
        late = [1_000_000 if (n, rank) == (14, 1) else 10 * ((n + rank) % 3) for rank in range(3)]
        begins = [ends[-1] + 10_000 + own for own in late]
        ends.append(max(begins) + 1_000)
        calls += [
            call(
                rank=rank, id=n, seq=n, step=n // 4, at=at, until=ends[-1], call_ns=ends[-1] - at,
                blocked_ns=ends[-1] - at, module="m",
            )
            for rank, at in enumerate(begins)
        ]  # fmt: skip
    steps = [step(rank, n, ends[4 * n], ends[4 * n + 4]) for rank in range(3) for n in range(5)]
    frames = run_of(calls, num_ranks=3, steps=steps)
    assert [*left_out(frames)] == [3]
    (row,) = findings(frames).to_dict("records")
    assert row["rule"] == "stall"
    assert row["cost_ns"] == pytest.approx(1_000_000, abs=20)
    assert row["share"] == row["cost_ns"] / ends[-1]
    assert broken_laws(frames) == []


def test_of_a_large_stored_run_the_mean_of_some_steps_counts_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, whole = stored_run(barrier_trace(8), tmp_path / "RUN.comm")
    monkeypatch.setattr(basis, "MOST_CALLS", 16)
    assert basis_of(stored).num_calls == 16  # four of the steps
    assert basis_of(whole) is whole
    some, every = findings(stored), findings(whole)
    assert some["change"].tolist() == every["change"].tolist()
    np.testing.assert_allclose(some["cost_ns"], every["cost_ns"])
    np.testing.assert_allclose(some["share"], every["share"])
    for change in every["change"]:
        assert what_if(stored, [change]).saved_ns == what_if(whole, [change]).saved_ns


def test_a_saving_of_calls_outside_of_the_replayed_steps_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 0 gathers other parameters than the four steps behind it, of which one is replayed."""
    calls = gathers("vv" + 4 * "ww", [50] * 10, [n // 2 for n in range(10)])
    stored, whole = stored_run(trace_of(calls, steps=steps_of(5)), tmp_path / "RUN.comm")
    monkeypatch.setattr(basis, "MOST_CALLS", 4)
    assert again(whole)["cost_ns"].tolist() == [4 * 50, 50]
    known, unknown = again(stored).to_dict("records")
    assert known["cost_ns"] == 5 * 50  # as if the others were like the replayed step
    assert math.isnan(unknown["cost_ns"])
    assert savings(unknown, 2) == "8 B (time not known)"


def test_what_concerns_the_machine_comes_last_however_much_it_saves() -> None:
    concerns = {"cores": MACHINE, "late": PROGRAM, "hang": FAULT}
    rows = [
        {"rule": rule, "concerns": each, "cost_ns": cost, "most_ns": cost, "cost_bytes": 0.0,
         "title": ""}
        for cost, (rule, each) in zip((9.0, 5.0, 0.0), concerns.items(), strict=True)
    ]  # fmt: skip
    assert in_order(pd.DataFrame(rows))["rule"].tolist() == ["hang", "late", "cores"]


@pytest.mark.parametrize(
    ("least", "most", "error", "text"),
    [
        (52.4, 52.4, 2.6, "52 ms"),
        (52.4, 52.4, math.nan, "52.4 ms"),
        (2.0, 9.0, math.nan, "2 to 9 ms"),
        (0.0, 9.0, math.nan, "at most 9 ms"),
        (0.0, 0.0, math.nan, "0 ns"),
    ],
)
def test_a_saving_has_the_digits_that_its_error_bears_and_a_bound_is_one(
    least: float, most: float, error: float, text: str
) -> None:
    row = {"cost_ns": least * MS, "most_ns": most * MS, "error_ns": error * MS}
    assert time_text(row) == text


@pytest.mark.parametrize(
    ("share", "most", "text"),
    [
        (0.251, 20.0, "25% of it"),
        (0.0251, 20.0, "2.5% of it"),
        (0.0251, 40.0, "2.5% to 5.0% of it"),
        (0.0001, 20.0, ""),
        (0.0, 20.0, ""),
        (math.nan, math.nan, ""),
    ],
)
def test_a_share_has_no_more_digits_and_both_ends_of_a_range(
    share: float, most: float, text: str
) -> None:
    assert share_text({"share": share, "cost_ns": 20.0, "most_ns": most}, "of it") == text


def test_what_is_saved_in_few_steps_counts_in_the_mean_step_of_the_list() -> None:
    """Every third step gathers what it has; its median step is none of these."""
    number = [n for n in range(9) for _ in range(2 if n % 3 == 0 else 1)]
    frames = run_of(gathers("w" * len(number), [90] * len(number), number), steps=steps_of(9))
    table = again(frames)
    assert table["cost_ns"].tolist() == [3 * 90]
    assert what_if(frames, table["change"].tolist()).saved_ns == (0, 0)
    (row,) = [
        row for row in best_changes(frames).to_dict("records") if row["text"] == table["change"][0]
    ]
    assert row["saved_ns"] == pytest.approx(30)
