from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.figures import bandwidth
from commtrace.figures.bandwidth import AFTER, WITH_WAIT, curve_points, reference_lines
from commtrace.figures.theme import DARK, LIGHT
from commtrace.settings import Settings, speeds_of_links
from tests.commtrace.analyze.rows import call, group, run_of
from tests.commtrace.analyze.training import training_trace

HOSTILE = "<img src=x onerror=alert(1)>"


def collective(size: int, late: int, lasts: int, **columns: Any) -> list[Any]:
    """A collective of two ranks, the second of them late, that lasts as long after its arrival."""
    kernels = {"algorithm": "RING", "protocol": "LL"}
    return [
        call(rank=rank, at=late * rank, until=late + lasts, payload_bytes=size, blocked_ns=1,
             **({"seq": 0} | kernels | columns))
        for rank in range(2)
    ]  # fmt: skip


def frames_of(*collectives: list[Any]) -> Frames:
    groups = [group("g"), group("h", mesh_axis="dp"), group("i")]
    calls = [each for calls in collectives for each in calls]
    return run_of(calls, groups=groups)


@pytest.fixture
def frames() -> Frames:
    return frames_of(
        collective(1_000, 500, 1_000),
        collective(4_000_000, 1_000_000, 1_000_000, seq=1),
        collective(4_000_000, 1_000_000, 1_000_000, group="i"),
        collective(4_000, 0, 1_000, kind="all_gather", group="h"),
    )


def table_of(frames: Frames, link: Any = None) -> Any:
    settings = Settings(link=speeds_of_links(link)) if link else Settings()
    return CATALOG["bandwidth"].function(replace(frames, settings=settings))


def curves(figure: Any) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    return {
        (trace.name, trace.meta["part"]): (list(trace.x), list(trace.y))
        for trace in figure.data
        if trace.meta["part"] in (AFTER, WITH_WAIT)
    }


def test_a_kind_has_a_curve_after_the_last_arrival_and_one_with_the_wait(frames: Frames) -> None:
    figure = bandwidth(table_of(frames))
    sizes = [1_000, 4_000_000]
    found = curves(figure)
    assert found["all_reduce", AFTER] == (sizes, pytest.approx([1e9, 4e9]))
    with_wait = [2e3 / 2.5e-6, 8e6 / 3e-3]
    assert found["all_reduce", WITH_WAIT] == (sizes, pytest.approx(with_wait))
    assert found["all_gather", AFTER] == ([4_000], pytest.approx([2e9]))
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")


def test_curves_of_a_kind_on_several_axes_are_apart() -> None:
    frames = frames_of(collective(10, 0, 5), collective(10, 0, 10, group="h"))
    names = {name for name, _ in curves(bandwidth(table_of(frames)))}
    assert names == {"all_reduce on tp", "all_reduce on dp"}


def test_the_lines_are_solid_and_dotted_and_the_legend_says_which(frames: Frames) -> None:
    drawn = bandwidth(table_of(frames)).data
    dashes = {trace.meta["part"]: trace.line.dash for trace in drawn if trace.name == "all_reduce"}
    assert dashes == {AFTER: "solid", WITH_WAIT: "dot"}
    legend = {trace.name: trace.line.dash for trace in drawn if trace.meta["part"] == "legend"}
    assert legend == dashes
    in_legend = [trace.name for trace in drawn if trace.showlegend]
    assert sorted(in_legend) == ["all_gather", "all_reduce"]
    symbols = [trace.marker.symbol for trace in drawn if trace.meta["part"] == AFTER]
    assert len({*symbols}) == 2


def test_the_hover_text_has_sizes_speeds_and_kernels(frames: Frames) -> None:
    texts = {
        trace.meta["part"]: trace.hovertext[1]
        for trace in bandwidth(table_of(frames)).data
        if trace.name == "all_reduce"
    }
    assert texts[AFTER].split("<br>") == [
        "<b>all_reduce</b>",
        "2 MiB to 4 MiB each",
        "busbw 4 GB/s after the last arrival",
        "in 4 calls of all ranks",
        "best collective 4 GB/s",
        "RING LL",
    ]
    assert "busbw 2.67 GB/s from issue, with the wait" in texts[WITH_WAIT]


def lines(figure: Any) -> dict[str, float]:
    return {trace.name: trace.y[0] for trace in figure.data if trace.meta["part"] == "reference"}


def test_without_a_link_the_best_of_each_kind_is_the_reference(frames: Frames) -> None:
    figure = bandwidth(table_of(frames))
    assert lines(figure) == pytest.approx(
        {"best all_reduce 4 GB/s": 4e9, "best all_gather 2 GB/s": 2e9}
    )
    colours = {trace.name: trace.line.color for trace in figure.data}
    assert colours["best all_gather 2 GB/s"] == LIGHT.kind("all_gather")


def test_the_line_of_a_link_is_labelled_with_its_speed(frames: Frames) -> None:
    figure = bandwidth(table_of(frames, "400 Gbit/s"))
    assert lines(figure) == {"link 50 GB/s": 5e10}
    (line,) = (trace for trace in figure.data if trace.meta["part"] == "reference")
    assert (line.showlegend, line.hovertext) == (None, "link 50 GB/s")
    low, high = figure.layout.yaxis.range
    assert low < 10 < 10.7 < high


def test_links_of_several_axes_are_named(frames: Frames) -> None:
    names = [
        each.label for each in reference_lines(table_of(frames, {"tp": "9 GB/s", "dp": "1 GB/s"}))
    ]
    assert names == ["link of tp", "link of dp"]
    some = reference_lines(table_of(frames, {"tp": "9 GB/s"}))
    assert [each.label for each in some] == ["link", "best all_gather"]


def test_lines_are_named_in_the_legend_where_no_line_crosses_the_name() -> None:
    near = collective(1_000, 0, 505, kind="all_to_all", seq=1)  # its factor is one half
    figure = bandwidth(table_of(frames_of(collective(1_000, 0, 1_000), near)))
    assert len(lines(figure)) == 2
    assert not any(trace.text or "text" in trace.mode for trace in figure.data)
    assert not figure.layout.annotations


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_a_kind_has_its_colour(frames: Frames, theme: Any) -> None:
    for trace in bandwidth(table_of(frames), theme=theme).data:
        if trace.meta["part"] in (AFTER, WITH_WAIT):
            assert trace.marker.color == trace.line.color == theme.kinds[trace.name]


def test_what_is_unknown_is_no_point() -> None:
    alone = [call(at=0, until=50, payload_bytes=100, seq=0)]
    barrier = collective(0, 5, 9, kind="barrier", seq=1)
    figure = bandwidth(table_of(frames_of(alone, barrier)))
    assert curves(figure) == {("all_reduce", WITH_WAIT): ([100], pytest.approx([2e9]))}
    assert lines(figure) == {}


def test_axes_have_units_and_few_labels() -> None:
    calls = [collective(1 << power, 0, 1 + (1 << power // 2), seq=power) for power in range(4, 40)]
    figure = bandwidth(table_of(frames_of(*calls)))
    assert len(figure.layout.xaxis.ticktext) <= 10
    assert figure.layout.xaxis.ticktext[0] == "16 B"
    assert set(figure.layout.yaxis.ticktext) >= {"10 GB/s", "100 GB/s"}


def test_a_short_range_has_ticks_within_the_powers_of_ten(frames: Frames) -> None:
    assert "2 GB/s" in bandwidth(table_of(frames)).layout.yaxis.ticktext


def test_names_from_the_trace_are_no_markup() -> None:
    calls = collective(100, 0, 5, algorithm=HOSTILE, group="h") + collective(100, 0, 5)
    frames = run_of(calls, groups=[group("g"), group("h", mesh_axis=HOSTILE)])
    for link in (None, {HOSTILE: "9 GB/s", "tp": "1 GB/s"}):
        assert "<img" not in bandwidth(table_of(frames, link)).to_json()


def test_a_run_without_ends_says_so() -> None:
    figure = bandwidth(table_of(frames_of([call(at=0, payload_bytes=5)])))
    assert not figure.data
    text = figure.layout.annotations[0].text
    assert text == "No call of known size has a known bandwidth in this trace."


def test_the_points_of_a_training_are_those_of_its_table() -> None:
    table = table_of(load(training_trace(late_rank=2)))
    points = curve_points(table).set_index(["kind", "from_bytes"])
    for row in table[table["num_timed"] > 0].to_dict("records"):
        point = points.loc[(row["kind"], row["from_bytes"])]
        assert point["busbw_after"] == pytest.approx(row["busbw_after_arrival_bytes_per_s"])
        assert point["payload"] == row["payload_bytes"] / row["num_calls"]
