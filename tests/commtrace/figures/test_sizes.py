from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import CATALOG
from commtrace.errors import UsageError
from commtrace.figures import sizes
from commtrace.figures.sizes import text_of_power
from commtrace.figures.theme import DARK, LIGHT
from tests.commtrace.analyze.rows import call, group, run_of

HOSTILE = "<img src=x onerror=alert(1)>"


def table_of(*calls: Any) -> Any:
    groups = [group("g"), group("h")]
    return CATALOG["sizes"].function(run_of(calls, groups=groups))


@pytest.fixture
def table() -> Any:
    """Two small and one large all-reduce on two groups, a gather between them, and a barrier."""
    return table_of(
        call(payload_bytes=1024, blocked_ns=1_000_000),
        call(payload_bytes=2047, blocked_ns=2_000_000, group="h"),
        call(payload_bytes=8192, blocked_ns=4_000_000),
        call(kind="all_gather", payload_bytes=1500, blocked_ns=8_000_000),
        call(kind="barrier", payload_bytes=0),
    )


def bars(figure: Any) -> dict[str, Any]:
    return {trace.name: (list(trace.x), list(trace.y)) for trace in figure.data}


def test_a_bar_counts_the_calls_of_its_power_of_two_by_kind(table: Any) -> None:
    figure = sizes(table)
    assert list(figure.layout.xaxis.ticktext) == ["0 B", "1 KiB", "2 KiB", "4 KiB", "8 KiB"]
    assert bars(figure) == {
        "all_reduce": ([1, 4], [2, 1]),
        "all_gather": ([1], [1]),
        "barrier": ([0], [1]),
    }
    assert figure.layout.barmode == "stack"


def test_bars_may_be_bytes_or_seconds_and_the_axis_says_which(table: Any) -> None:
    by_bytes, by_time = sizes(table, value="payload_bytes"), sizes(table, value="blocked_ns")
    assert bars(by_bytes)["all_reduce"] == ([1, 4], [3071, 8192])
    assert bars(by_time)["all_reduce"] == ([1, 4], [0.003, 0.004])
    assert by_bytes.layout.yaxis.title.text == "payload of all ranks"
    assert (by_bytes.layout.yaxis.ticksuffix, by_time.layout.yaxis.ticksuffix) == ("B", "s")


def test_the_hover_text_has_the_range_and_all_three_measures(table: Any) -> None:
    texts = {trace.name: trace.hovertext[0] for trace in sizes(table).data}
    assert texts["all_reduce"].split("<br>") == [
        "<b>all_reduce</b>",
        "1 KiB to 2 KiB each",
        "2 calls of all ranks",
        "payload 3.07 kB",
        "exposed 3 ms",
    ]
    assert texts["barrier"].split("<br>")[1:3] == ["no payload", "1 call of all ranks"]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_a_kind_has_its_colour(table: Any, theme: Any) -> None:
    for trace in sizes(table, theme=theme).data:
        assert trace.marker.color == theme.kinds[trace.name]


def test_powers_are_written_in_binary_units() -> None:
    texts = [text_of_power(size) for size in (0, 1, 512, 1024, 1 << 29, 1 << 30, 1 << 41)]
    assert texts == ["0 B", "1 B", "512 B", "1 KiB", "512 MiB", "1 GiB", "2 TiB"]


def test_names_from_the_trace_are_no_markup() -> None:
    (trace,) = sizes(table_of(call(kind=HOSTILE, payload_bytes=1))).data
    assert "<img" not in trace.name + trace.hovertext[0]


def test_without_sizes_it_says_so() -> None:
    figure = sizes(table_of(call()))
    assert not figure.data
    assert figure.layout.annotations[0].text == "No message of known size is in this trace."


def test_an_unknown_value_is_refused_with_those_that_exist(table: Any) -> None:
    with pytest.raises(UsageError, match="one of num_calls, payload_bytes, blocked_ns"):
        sizes(table, value="colour")


def test_the_hover_text_of_messages_that_were_not_timed_does_not_say_0() -> None:
    table = table_of(
        call(payload_bytes=8, blocked_ns=5_000_000),
        call(payload_bytes=8),
        call(kind="all_gather", payload_bytes=8),
    )
    texts = {trace.name: trace.hovertext[0] for trace in sizes(table, value="blocked_ns").data}
    assert texts["all_reduce"].endswith("<br>exposed 5 ms, known for 1 of 2 calls")
    assert texts["all_gather"].endswith("<br>exposed not known for 1 of 1 call")
