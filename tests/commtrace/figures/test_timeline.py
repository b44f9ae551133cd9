from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go
import pytest

from commtrace.analyze import CATALOG, load
from commtrace.errors import UsageError
from commtrace.figures.theme import DARK, LIGHT
from commtrace.figures.timeline import call_text, timeline
from tests.commtrace.analyze.rows import call, group, op, run_of, step
from tests.commtrace.analyze.training import training_trace

HOSTILE = "<script>alert(1)</script>"


def parts(figure: go.Figure, part: str) -> dict[str, go.Bar]:
    """The traces of a part, by kind or by name."""
    return {
        trace.meta.get("kind", trace.name): trace
        for trace in figure.data
        if trace.meta["part"] == part
    }


@pytest.fixture
def late() -> Any:
    """Two ranks have two collectives; at the first, rank 1 arrives 2 ms after rank 0."""
    milli = 1_000_000
    calls = []
    for seq, (kind, comes, leaves) in enumerate(
        [("all_reduce", (1, 3), 4), ("all_gather", (6, 6), 7)]
    ):
        for rank, at in enumerate(comes):
            lasts = (leaves - at) * milli
            calls.append(
                call(
                    rank=rank,
                    id=seq,
                    seq=seq,
                    kind=kind,
                    at=at * milli,
                    until=leaves * milli,
                    call_ns=lasts,
                    blocked_ns=lasts,
                )
            )
    return run_of(calls, steps=[step(0, 0, 0, 5 * milli), step(0, 1, 5 * milli, 9 * milli)])


def test_a_call_is_a_bar_on_its_rank_from_issue_to_completion(late: Any) -> None:
    bar = parts(timeline(late), "transfer")["all_gather"]
    assert list(bar.base) == [6, 6]
    assert list(bar.x) == [1, 1]
    assert list(bar.y) == [0, 1]
    assert list(bar.customdata) == [2, 3]


def test_waiting_is_hatched_and_apart_from_transfer(late: Any) -> None:
    figure = timeline(late)
    wait, transfer = parts(figure, "wait"), parts(figure, "transfer")
    assert list(wait) == ["all_reduce"]
    assert (list(wait["all_reduce"].base), list(wait["all_reduce"].x)) == ([1], [2])
    assert wait["all_reduce"].marker.pattern.shape == "/"
    assert wait["all_reduce"].marker.pattern.fgcolor == LIGHT.kinds["all_reduce"]
    assert list(transfer["all_reduce"].base) == [3, 3]
    assert list(transfer["all_reduce"].x) == [1, 1]
    assert transfer["all_reduce"].marker.pattern.shape is None


def test_a_call_without_a_known_end_is_a_line() -> None:
    bar = parts(timeline(run_of([call(at=5)])), "transfer")["all_reduce"]
    assert list(bar.x) == [0]
    assert (bar.marker.line.width, bar.marker.line.color) == (1, bar.marker.color)


def test_a_step_whose_beginning_or_end_is_not_known_is_not_drawn(late: Any) -> None:
    for name in ("start_ns", "end_ns"):
        steps = late.steps.assign(**{name: [late.steps[name][0], -1]})
        bar = parts(timeline(replace(late, steps=steps)), "step")["steps"]
        assert list(bar.text) == ["step 0"]


def test_steps_stand_above_the_ranks(late: Any) -> None:
    bar = parts(timeline(late), "step")["steps"]
    assert list(bar.text) == ["step 0", "step 1"]
    assert (list(bar.base), list(bar.x)) == ([0, 5], [5, 4])
    assert max(bar.y) < 0


def test_calls_that_overlap_share_the_height_of_their_rank() -> None:
    calls = [call(at=0, until=100), call(at=50, until=150), call(rank=1, at=0, until=100)]
    bar = parts(timeline(run_of(calls)), "transfer")["all_reduce"]
    first, second, other = bar.y
    assert (first + second) / 2 == 0
    assert second - first == pytest.approx(bar.width[0])
    assert other == 1
    assert bar.width[2] == pytest.approx(2 * bar.width[0])


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_kinds_and_phases_have_their_colours(theme: Any) -> None:
    figure = timeline(load(training_trace()), theme=theme)
    for kind, bar in parts(figure, "transfer").items():
        assert bar.marker.color == theme.kinds[kind]
    for phase, bar in parts(figure, "phase").items():
        assert bar.marker.color == theme.phases[phase]
    assert list(parts(figure, "phase")) == ["forward", "backward", "optimizer"]


def test_the_number_of_traces_does_not_grow_with_the_run() -> None:
    few = timeline(load(training_trace(num_steps=1)))
    many = timeline(load(training_trace(num_steps=9)))
    assert len(few.data) == len(many.data)


def test_too_many_calls_are_drawn_as_shares_of_time() -> None:
    frames = load(training_trace(num_steps=9))
    figure = timeline(frames, max_marks=100)
    bars = [*parts(figure, "transfer").values(), *parts(figure, "wait").values()]
    assert sum(len(bar.x) for bar in bars) <= 100
    assert {row for bar in bars for row in bar.customdata} == {-1}
    assert re.fullmatch(
        r"<b>all_reduce</b> on rank 0<br>[0-9.]+% of [0-9.]+ ms is transfer of it<br>\d+ calls",
        parts(figure, "transfer")["all_reduce"].hovertext[0],
    )
    assert "is waiting in it" in parts(figure, "wait")["all_reduce"].hovertext[0]
    assert not parts(figure, "phase")
    assert figure.layout.meta == {"single": False}


def test_a_window_shows_single_calls_again() -> None:
    frames = load(training_trace(num_steps=9))
    first = frames.steps["start_ns"].min() - frames.start_ns
    window = (int(first), int(first) + 2_000_000)
    figure = timeline(frames, window_ns=window, max_marks=120)
    assert figure.layout.meta == {"single": True}
    assert figure.layout.xaxis.range == (window[0] / 1e6, window[1] / 1e6)
    rows = [row for bar in parts(figure, "transfer").values() for row in bar.customdata]
    assert rows
    assert min(rows) >= 0


def test_many_ranks_have_lower_rows() -> None:
    calls = [call(at=0, until=1)]
    few, many = (timeline(run_of(calls, num_ranks=n)).layout.height for n in (4, 64))
    assert few > 4 * 40
    assert 64 * 15 <= many < 64 * 20


def test_a_bar_s_text_is_of_the_call_that_it_names() -> None:
    frames = load(training_trace())
    rows = CATALOG["calls"].function(frames).to_dict("records")
    for bar in parts(timeline(frames), "transfer").values():
        for row, text in zip(bar.customdata, bar.hovertext, strict=True):
            assert text == call_text(rows[row])


def text_of(**given: Any) -> str:
    frames = run_of([call(**given)], groups=[group("tp", (0, 1))])
    return call_text(CATALOG["calls"].function(frames).to_dict("records")[0])


def test_the_text_of_a_call_has_its_details() -> None:
    frames = run_of(
        [
            call(
                rank=rank,
                id=7,
                seq=0,
                at=at,
                until=5000,
                call_ns=5000 - at,
                blocked_ns=5000 - at,
                payload_bytes=2048,
                wire_bytes=2048,
                dtype="float32",
                input_shapes="[8,64]",
                reduce_op="sum",
                module="layers.0.attention.wo",
                module_class="Linear",
                step=3,
                op="aten.mm.default",
                reason="aten.mm.default needs self R: all_reduce on tp",
                source_file="train.py",
                source_line=42,
                source_function="forward",
            )
            for rank, at in ((0, 0), (1, 3000))
        ]
    )
    first, second = map(call_text, CATALOG["calls"].function(frames).to_dict("records"))
    assert first.split("<br>") == [
        "<b>all_reduce</b> on rank 0, call 7",
        "aten.mm.default needs self R: all_reduce on tp",
        "layers.0.attention.wo (Linear), forward, step 3",
        "for aten.mm.default",
        "payload 2.05 kB, sent 2.05 kB, float32 [8,64], group tp, sum",
        "blocked 5 µs: waited 3 µs (last to arrive: rank 1), transfer 2 µs",
        "train.py:42 in forward",
    ]
    assert "blocked 2 µs; last to arrive" in second


def test_what_is_not_known_is_not_said() -> None:
    assert text_of(id=0, group="").split("<br>") == [
        "<b>all_reduce</b> on rank 0, call 0",
        "outside of modules, forward, outside of steps",
    ]


def test_names_from_the_trace_are_no_markup() -> None:
    hostile = {
        name: HOSTILE
        for name in ("kind", "reason", "module", "module_class", "op", "source_file", "dtype")
    }
    frames = run_of(
        [call(at=0, until=1, phase=HOSTILE, group=HOSTILE, reduce_op=HOSTILE, **hostile)],
        ops=[op(at=0, duration_ns=5, phase=HOSTILE)],
    )
    for trace in timeline(frames).data:
        for text in (trace.name, *(trace.hovertext or ())):
            assert "<script" not in text


def test_chosen_ranks_have_rows_of_their_own_and_know_what_they_wait_for(late: Any) -> None:
    figure = timeline(late, ranks=[1])
    assert list(figure.layout.yaxis.ticktext) == ["rank 1"]
    assert set(parts(figure, "transfer")["all_gather"].y) == {0}
    only = timeline(late, ranks=[0])
    assert list(parts(only, "wait")["all_reduce"].x) == [2]


def test_a_rank_that_the_run_does_not_have_is_refused(late: Any) -> None:
    with pytest.raises(UsageError, match="no rank 7 in this trace"):
        timeline(late, ranks=[0, 7])


def test_a_run_or_a_window_without_communication_says_so(late: Any) -> None:
    figure = timeline(run_of(num_ranks=3), because="Nothing was recorded.")
    assert len(figure.data) == 0
    assert figure.layout.annotations[0].text == (
        "No communication with a known time is in this trace: Nothing was recorded."
    )
    later = timeline(late, window_ns=(10**9, 2 * 10**9))
    assert later.layout.annotations[0].text == "No communication is in this part of the trace."


def test_with_a_title_kinds_waiting_and_phases_are_in_a_legend() -> None:
    figure = timeline(load(training_trace()), title="When")
    shown = [trace.name for trace in figure.data if trace.showlegend]
    assert shown.count("waiting for the last rank") == 1
    assert {"forward", "backward", "all_reduce", "broadcast"} <= set(shown)
    assert len(shown) == len(set(shown))
    wait, transfer = (parts(figure, part)["all_reduce"] for part in ("wait", "transfer"))
    assert wait.legendgroup == transfer.legendgroup
    assert not wait.showlegend
    assert not any(trace.showlegend for trace in timeline(load(training_trace())).data)


def test_the_critical_path_is_drawn_over_the_ranks_if_it_is_asked_for() -> None:
    times = {(0, 0): (100, 120), (1, 0): (10, 120), (0, 1): (130, 320), (1, 1): (300, 320)}
    run = run_of(
        [
            call(
                rank=rank, id=seq, seq=seq, at=at, until=end, call_ns=end - at, blocked_ns=end - at
            )
            for (rank, seq), (at, end) in times.items()
        ]
    )
    assert parts(timeline(run), "path") == {}
    figure = timeline(run, critical_path=True, title="Timeline")
    path, hop = parts(figure, "path")[""], parts(figure, "hop")[""]
    table = CATALOG["critical_path"].function(run)
    assert list(path.x) == pytest.approx((table["duration_ns"] / 1e6).tolist())
    assert [round(y) for y in path.y] == table["rank"].tolist()
    assert len(hop.x) == 3 * (table["from_rank"] >= 0).sum() > 0
    assert path.showlegend
    assert "transfer of all_reduce" in path.hovertext[0]
