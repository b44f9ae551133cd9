from __future__ import annotations

import pytest

from commtrace.errors import UsageError
from commtrace_cli.selecting import FOREVER_NS, ranks_of, steps_of, window_of


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("1.5s:2s", (1_500_000_000, 2_000_000_000)),
        ("250ms:", (250_000_000, FOREVER_NS)),
        (":80us", (0, 80_000)),
        ("10ns : 3µs", (10, 3000)),
        ("0s:1min", (0, 60_000_000_000)),
        (f"1s:{'9' * 18}min", (1_000_000_000, FOREVER_NS)),
    ],
)
def test_a_window_is_two_times_with_units(text: str, window: tuple[int, int]) -> None:
    assert window_of(text) == window


@pytest.mark.parametrize(
    "text", ["", ":", "1:2", "1s", "1s:2s:3s", "one:two", "-1s:2s", f"0s:{'9' * 400}s"]
)
def test_anything_else_is_no_window(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        window_of(text)
    assert str(refused.value) == (
        f"cannot read the window {text!r}\n"
        "  why: a window is two times relative to the start of the run, with units\n"
        "  try: --window 1.5s:2s, or 250ms: for an open end"
    )


def test_a_window_ends_after_its_start() -> None:
    with pytest.raises(UsageError, match="an end that is not after the start"):
        window_of("2s:1s")


def test_steps_are_a_range_or_one() -> None:
    assert steps_of("3:5") == (3, 5)
    assert steps_of("5:3") == (3, 5)
    assert steps_of("4") == (4, 4)
    assert steps_of(None) is None
    for text in ("3-5", "9" * 5000):
        with pytest.raises(UsageError, match=f"cannot read the steps '{text}'"):
            steps_of(text)


def test_ranks_are_one_by_one_or_ranges() -> None:
    assert ranks_of("0,1") == [0, 1]
    assert ranks_of("6-8, 2,7") == ranks_of("8-6,2") == [2, 6, 7, 8]
    assert ranks_of(None) is None


@pytest.mark.parametrize("text", ["", "a", "1,", "1:2", "-1", "0-99999999", "9" * 5000])
def test_anything_else_is_no_ranks(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        ranks_of(text)
    assert str(refused.value) == (
        f"cannot read the ranks {text!r}\n"
        "  why: ranks are numbers or ranges, separated by commas\n"
        "  try: --ranks 0,1, or --ranks 0-3,8"
    )
