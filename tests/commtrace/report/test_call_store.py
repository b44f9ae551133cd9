from __future__ import annotations

import gzip

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.analyze.measures.arrivals import end_ns
from commtrace.analyze.replay.slack import slack_of_calls
from commtrace.report import call_store as module
from commtrace.report.call_store import CallStore, call_store
from commtrace.schema import INSTANT
from tests.commtrace.analyze.rows import call, random_trace, run_of
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.report.reading import decoded

RUNS = [
    load(training_trace()),
    load(random_trace(3)),
    run_of(),
    run_of([call(), call(rank=1, kind="made_up", at=5), call(rank=1, id=4, op="x")]),
]


def columns(store: CallStore) -> dict[str, list[int]]:
    return decoded(store.head, gzip.decompress(store.body))


@pytest.mark.parametrize("frames", RUNS)
def test_every_value_of_every_call_comes_back(frames: Frames) -> None:
    store = call_store(frames)
    found = columns(store)
    table = CATALOG["calls"].function(frames)
    wanted = table.sort_values(["rank", "issue_ns"], kind="stable").reset_index(drop=True)
    assert store.head["num_rows"] == len(wanted)
    for column in CATALOG["calls"].columns:
        if column.name in found:
            values = found[column.name]
            if column.unit == INSTANT:
                values = [value + frames.start_ns if value >= 0 else -1 for value in values]
        else:
            values = store.sites[column.name].iloc[found["site"]].tolist()
        assert values == wanted[column.name].tolist(), column.name


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_slack_of_calls_is_that_in_the_whole_run(is_whole: bool) -> None:
    frames = load(training_trace())
    found = columns(call_store(frames, is_whole=is_whole))
    known = slack_of_calls(frames) if is_whole else {}
    order = frames.comm.sort_values(["rank", "issue_ns"], kind="stable").index
    assert found["slack_ns"] == [known.get(row, -1) for row in order]
    assert (max(found["slack_ns"]) > 0) == is_whole


def test_calls_that_differ_in_time_only_share_a_site() -> None:
    frames = run_of([call(at=at, id=at, source_line=7 + at // 3) for at in range(5)])
    assert columns(call_store(frames))["site"] == [0, 0, 0, 1, 1]


def test_ends_come_after_starts_and_what_is_ready_between() -> None:
    frames = load(training_trace())
    found = columns(call_store(frames))
    ends = sorted(value - frames.start_ns for value in end_ns(frames.comm))
    assert sorted(found["end_ns"]) == ends
    both = zip(found["issue_ns"], found["ready_ns"], found["end_ns"], strict=True)
    assert all(start <= ready <= end for start, ready, end in both)


def test_times_are_rounded_where_they_would_take_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = load(training_trace())
    exact = columns(call_store(frames))
    monkeypatch.setattr(module, "MAX_BYTES", len(call_store(frames).body) - 1)
    store = call_store(frames)
    resolution = store.head["resolution_ns"]
    assert resolution > 1
    found = columns(store)
    for name in ("issue_ns", "blocked_ns", "wait_ns", "end_ns"):
        assert found[name] == [value // resolution * resolution for value in exact[name]]
    assert found["id"] == exact["id"]
