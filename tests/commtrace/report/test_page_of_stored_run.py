"""Pages of stored runs hold the same as pages of runs in memory, whatever is shown singly."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commtrace.analyze import Frames
from commtrace.analyze.measures.arrivals import arrivals, end_ns
from commtrace.analyze.run.frame import frames_of
from commtrace.analyze.stored import StoredRun
from commtrace.errors import UsageError
from commtrace.report import detail as detail_module
from commtrace.report import render_page
from commtrace.report.detail import detail_of
from commtrace.report.overview import LEAST_COLUMNS, MOST_CELLS, UNIT, edges_ns, overview
from commtrace.selection import Selection
from commtrace.tracefile import Trace, write_trace
from commtrace.tracefile.dataset import open_dataset, prepare_dataset
from tests.commtrace.analyze.rows import call, run_of
from tests.commtrace.analyze.test_second_computation import FAULTY, TRACES
from tests.commtrace.report.reading import calls, data, text

NAMES = ("training", "crossed", "device0", "mesh")


def stored_run(trace: Trace, folder: Path, parts: int = 3) -> tuple[StoredRun, Frames]:
    """A run that is read in parts, and the same run in memory."""
    folder.mkdir()
    write_trace(trace, folder / "run.json")
    prepare_dataset(folder, workers=1)
    dataset = open_dataset(folder)
    whole = frames_of(dataset.trace())
    return StoredRun(dataset, rows_of_part=max(5, len(whole.comm) // parts)), whole


@pytest.fixture(scope="module", params=NAMES)
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[StoredRun, Frames]:
    folder = tmp_path_factory.mktemp("stored") / "RUN.comm"
    return stored_run((TRACES | FAULTY)[request.param], folder)


@pytest.fixture(scope="module")
def in_memory(runs: tuple[StoredRun, Frames]) -> str:
    """The page of the run in memory."""
    return render_page(runs[1])


@pytest.fixture(scope="module")
def with_few(runs: tuple[StoredRun, Frames]) -> str:
    """The page of the stored run, with a quarter of its calls at most, about."""
    stored, whole = runs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detail_module, "MOST_CALLS", len(whole.comm) // 4)
        return render_page(stored)


def said(page: str) -> str:
    """The text of a page, without its packed data."""
    return text(re.sub(r'id="packed-[a-z]+">[^<]*<', 'id="packed"><', page))


def rounded(value: Any) -> Any:
    """The same data, with floats rounded, as sums of parts may differ in the last bits."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [rounded(each) for each in value]
    return value


def test_the_page_of_a_small_stored_run_is_that_of_the_run_in_memory(
    runs: tuple[StoredRun, Frames], in_memory: str
) -> None:
    stored, _ = runs
    found, expected = render_page(stored), in_memory
    assert "_whole" not in vars(stored), "a table of all ranks was read"
    assert said(found) == said(expected)
    assert rounded(data(found)) == rounded(data(expected))
    assert calls(found) == calls(expected)


def test_with_few_single_calls_all_else_is_that_of_the_run_in_memory(
    runs: tuple[StoredRun, Frames], in_memory: str, with_few: str
) -> None:
    stored, whole = runs
    found, expected = (rounded(data(each)) for each in (with_few, in_memory))
    for name in ("flame", "flame_values", "flame_notes", "flame_names", "patterns"):
        assert found[name] == expected[name], name
    tables = {table["name"]: table for table in expected["tables"]}
    for table in found["tables"]:
        if table["name"] != "calls":
            assert table == tables[table["name"]]
    timeline = found["timeline"]
    for name in ("layout", "rows", "ranks", "whole_ns", "steps", "opening", "kernels"):
        assert timeline[name] == expected["timeline"][name], name
    (listed,) = [table for table in found["tables"] if table["name"] == "calls"]
    assert 0 < listed["num_rows"] < len(whole.comm)
    assert listed["num_left_out"] == len(whole.comm) - listed["num_rows"]
    assert len(with_few) < 20_000_000
    words = said(with_few)
    assert f"Single calls: {listed['num_rows']:,} of {len(whole.comm):,} are on this page." in words
    assert f"commtrace report {stored.path} --" in words


def test_single_calls_are_those_of_the_stretches_with_all_members(
    runs: tuple[StoredRun, Frames], with_few: str
) -> None:
    _, whole = runs
    stretches = data(with_few)["timeline"]["stretches"]
    assert stretches == sorted(stretches)
    shown = calls(with_few)
    ids = set(zip(shown["rank"], shown["id"], strict=True))
    comm, start = whole.comm, whole.start_ns
    ends = end_ns(comm)
    for first, last in stretches:
        inside = (
            (comm["issue_ns"] >= 0) & (comm["issue_ns"] < last + start) & (ends > first + start)
        )
        assert ids >= set(zip(comm.loc[inside, "rank"], comm.loc[inside, "id"], strict=True))
    waits = dict(
        zip(zip(comm["rank"], comm["id"], strict=True), arrivals(whole)["wait_ns"], strict=True)
    )
    of_shown = zip(shown["rank"], shown["id"], shown["wait_ns"], strict=True)
    assert all(waits[rank, number] == wait for rank, number, wait in of_shown)


def test_shares_of_time_are_those_of_loops_over_the_calls(runs: tuple[StoredRun, Frames]) -> None:
    stored, whole = runs
    ranks = sorted(set(whole.comm["rank"]))
    edges = edges_ns(whole)
    assert edges_ns(stored) == edges
    for run in (stored, whole):
        seen = overview(run, ranks, edges)
        expected, begun = shares_by_loops(whole, seen.first_ns, seen.column_ns, seen.num_columns)
        assert int(seen.num_begun.sum()) == begun
        kinds = {kind: place for place, kind in enumerate(seen.kinds)}
        found = np.zeros(seen.shares.shape)
        for (rank, column, kind, part), ns in expected.items():
            found[ranks.index(rank), column, 2 * kinds[kind] + part] = ns / seen.column_ns * UNIT
        difference = seen.shares - found
        assert difference.min() > -1e-6, "a share is rounded down"
        assert difference.max() < 1 + 1e-6


def shares_by_loops(
    frames: Frames, first: int, width: int, num_columns: int
) -> tuple[dict[tuple[int, int, str, int], float], int]:
    """Blocked ns by rank, column, kind and part, and the number of calls of known issue."""
    sums: dict[tuple[int, int, str, int], float] = {}
    num = 0
    arrived = arrivals(frames)["arrival_ns"].tolist()
    for row, end, arrival in zip(
        frames.comm.to_dict("records"), end_ns(frames.comm).tolist(), arrived, strict=True
    ):
        if row["issue_ns"] < 0:
            continue
        num += 1
        issue, end = row["issue_ns"] - frames.start_ns, end - frames.start_ns
        ready = issue if arrival < 0 else min(max(arrival - frames.start_ns, issue), end)
        held = end - issue if row["blocked_ns"] < 0 else row["blocked_ns"]
        in_call = held if row["call_ns"] < 0 else min(row["call_ns"], held)
        for begin, finish in ((issue, issue + in_call), (end - (held - in_call), end)):
            for part, since, until in (
                (1, begin, min(finish, ready)),
                (0, max(begin, ready), finish),
            ):
                for column in range(max((since - first) // width, 0), num_columns):
                    left = first + column * width
                    if left >= until:
                        break
                    ns = min(until, left + width) - max(since, left)
                    if ns > 0:
                        key = (row["rank"], column, str(row["kind"]), part)
                        sums[key] = sums.get(key, 0) + ns
    return sums, num


@pytest.mark.parametrize("is_stored", [True, False])
def test_other_ranks_are_said_to_be_missing_and_waits_stay_known(
    runs: tuple[StoredRun, Frames], is_stored: bool
) -> None:
    stored, whole = runs
    run = stored if is_stored else whole
    one = int(whole.comm["rank"].iloc[0])
    page = render_page(run, Selection(ranks=[one]))
    num_others = len(set(whole.ranks["rank"])) - 1
    assert f"the calls of {num_others} other rank" in said(page)
    found = data(page)
    assert found["timeline"]["ranks"] == [one]
    assert found["call_facts"]["shown_ranks"] == [one]
    shown = calls(page)
    assert set(shown["rank"]) == {one}
    of_rank = whole.comm["rank"] == one
    assert sorted(shown["wait_ns"]) == sorted(arrivals(whole).loc[of_rank, "wait_ns"])
    (by_rank,) = [table for table in found["tables"] if table["name"] == "by_rank"]
    assert by_rank["num_rows"] == len(whole.ranks)


def test_an_unknown_rank_is_refused(runs: tuple[StoredRun, Frames]) -> None:
    for run in runs:
        with pytest.raises(UsageError, match="no rank 77 in this trace"):
            render_page(run, Selection(ranks=[77]))


def test_a_page_of_steps_of_a_stored_run_is_that_of_the_run_in_memory(
    runs: tuple[StoredRun, Frames],
) -> None:
    stored, whole = runs
    if not len(whole.timed_steps):
        pytest.skip("the run has no steps")
    step = int(whole.timed_steps["step"].iloc[-1])
    found, expected = (render_page(run, Selection(steps=(step, step))) for run in (stored, whole))
    assert said(found) == said(expected)
    assert rounded(data(found)) == rounded(data(expected))
    assert calls(found) == calls(expected)


def test_evidence_of_findings_is_among_the_single_calls(tmp_path: Path) -> None:
    stored, whole = stored_run(TRACES["training"], tmp_path / "RUN.comm")
    of_rank = whole.comm[whole.comm["rank"] == 3]
    number = int(of_rank.sort_values("issue_ns")["id"].iloc[-3])
    evidence = [[f"3:{number}"]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detail_module, "MOST_CALLS", 60)
        found = detail_of(stored, None, evidence)
    assert found.stretches is not None
    assert found.overview is not None
    assert ((found.frames.comm["rank"] == 3) & (found.frames.comm["id"] == number)).any()
    assert len(found.frames.comm) < len(whole.comm)


def test_a_name_from_the_trace_is_escaped_in_the_overview(tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script>"
    rows = [
        call(rank=rank, id=at, seq=at, at=100 * at, kind=hostile)
        for rank in (0, 1)
        for at in range(40)
    ]
    frames = run_of(rows)
    seen = overview(frames, [0, 1], edges_ns(frames))
    assert seen.kinds == (hostile,)
    assert not re.search("</script><script>alert", render_page(frames).split("packed-data")[0])


@pytest.mark.parametrize("num_ranks", [2, 500, 1024])
def test_an_overview_is_of_bounded_size(num_ranks: int) -> None:
    rows = [call(rank=rank, at=10 * rank, until=10**9) for rank in range(num_ranks)]
    frames = run_of(rows)
    seen = overview(frames, [*range(num_ranks)], edges_ns(frames))
    assert seen.num_columns >= LEAST_COLUMNS
    assert len(seen.body()) == 2 * seen.shares.size <= 2 * MOST_CELLS


def test_stretches_that_are_denser_than_expected_are_shortened(
    runs: tuple[StoredRun, Frames], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, whole = runs
    monkeypatch.setattr(detail_module, "MOST_CALLS", len(whole.comm) // 4)
    monkeypatch.setattr(detail_module, "FEW_CALLS", 0)
    asked: list[float] = []

    def all_of_it(frames: Frames, seen: Any, evidence: Any, budget: float) -> Any:
        asked.append(budget)
        return [edges_ns(frames)] if len(asked) < 3 else []

    monkeypatch.setattr(detail_module, "_stretches", all_of_it)
    found = detail_of(stored, None, [])
    assert [budget / asked[0] for budget in asked] == [1, 1 / 4, 1 / 16]
    assert len(found.frames.comm) == 0
