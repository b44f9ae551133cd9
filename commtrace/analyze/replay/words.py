"""Sentences about replays: what a change saves, and why a run cannot be replayed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from commtrace.analyze.measures.census import census
from commtrace.analyze.replay.basis import basis_of
from commtrace.analyze.replay.outcome import StepTime
from commtrace.analyze.run.frame import Frames
from commtrace.errors import UsageError
from commtrace.units import counted, text_of_duration, text_of_measured, text_within

LIMIT, RANGE = "limit", "range"
"""Values of column `bound` of table `whatif`."""


def unit_of(num_steps: int) -> str:
    """Return the word for the time that is compared: of a step, or of the run without steps."""
    return "step" if num_steps else "run"


def step_text(step: StepTime) -> str:
    """Return a step time in words: `step 12.0 ± 0.1 ms, of 20 steady steps`."""
    if not step.num_steps:
        return f"run {text_of_duration(step.step_ns)}, without steps"
    time = text_of_measured(step.step_ns, step.error_ns)
    return f"step {time}, of {counted(step.num_steps, 'steady step')}"


def change_text(row: Mapping[Any, Any]) -> str:
    """Return the step times without and with a change: `290 ± 15 ms -> 238 ms`."""
    before, error = row["before_ns"], row["error_ns"]
    return f"{text_of_measured(before, error)} -> {after_text(after_of(row), error)}"


def after_of(row: Mapping[Any, Any]) -> tuple[float, float]:
    """Return the step times with a change of table `whatif`: at least, and at most."""
    return row["before_ns"] - row["most_saved_ns"], row["step_ns"]


def after_text(after: tuple[float, float], error_ns: float) -> str:
    """Return step times with a change, at least and at most, to the digits of its error."""
    least, most = (_MEASURED.sub("", text_of_measured(each, error_ns)) for each in after)
    return span_text(least, most)


_MEASURED = re.compile(r" ± \S+")


def span_text(least: str, most: str) -> str:
    """Return a range of two times, or one if they are equal: `282 to 290 ms`.

    >>> span_text("282 ms", "290 ms"), span_text("900 µs", "1.2 ms"), span_text("2 s", "2 s")
    ('282 to 290 ms', '900 µs to 1.2 ms', '2 s')
    """
    if least == most:
        return most
    number, _, unit = least.partition(" ")
    return f"{number if most.endswith(f' {unit}') else least} to {most}"


def text_beside(time_ns: float, step_ns: float, error_ns: float) -> str:
    """Format a time to the last digit that is shown of a step time with its error."""
    if not step_ns > 0:
        return text_of_duration(time_ns)
    place = math.floor(math.log10(step_ns)) - 2
    if error_ns > 0:
        first = math.floor(math.log10(error_ns))
        place = max(place, first - (error_ns / 10.0**first < 3))
    last = 10.0**place
    return text_of_duration(round(time_ns / last) * last if abs(time_ns) >= last else time_ns)


def verdict_text(step: StepTime, after: tuple[float, float]) -> str:
    """Return the effect of changes in a clause: `saves 52 ms (18%)`, `costs 2 to 3 ms (1.0%)`.

    Args:
        step: The step time before.
        after: The step times after: at least, and at most.
    """
    saved = [step.step_ns - each for each in reversed(after)]
    verb, others = ("costs", [-each for each in reversed(saved)]), ("saves", saved)
    word, (least, most) = verb if saved[1] <= 0 and saved[0] < 0 else others
    row = {
        "before_ns": step.step_ns,
        "error_ns": step.error_ns,
        "saved_ns": least,
        "most_saved_ns": most,
        "bound": RANGE if text_of_duration(least) != text_of_duration(most) else "",
    }
    text = f"{word} {saved_text(row).replace('≤ ', 'at most ')} ({share_text(row)})"
    if least < 0:
        text += f", or costs {text_of_duration(-least)}"
    is_small = 0 < max(abs(least), abs(most)) < step.error_ns
    return f"{text}, less than steps vary" if is_small else text


def saved_text(row: Mapping[Any, Any]) -> str:
    """Return the time that a change of table `whatif` saves: `52 ms`, `2 to 9 ms` or `≤ 9 ms`."""
    share = row["error_ns"] / row["before_ns"] if row["before_ns"] else math.nan
    return between_text(row["saved_ns"], row["most_saved_ns"], share)


def between_text(least_ns: float, most_ns: float, error_share: float) -> str:
    """Return a time between two bounds, to the digits that a relative error bears.

    >>> between_text(2e6, 2e6, 0.1), between_text(2e6, 9e6, 0.1), between_text(0.0, 9e6, 0.1)
    ('2 ms', '2 to 9 ms', '≤ 9 ms')
    """
    least, most = (text_within(each, each * error_share) for each in (least_ns, most_ns))
    if least_ns == most_ns:
        return least
    return span_text(least, most) if least_ns > 0 else f"≤ {most}"


def saves_text(row: Mapping[Any, Any]) -> str:
    """Return the time in a clause, with its part of the step: `saves 52 ms (18%)`."""
    saved = saved_text(row).replace("≤ ", "at most ")
    limit = "limit: " if row["bound"] == LIMIT else ""
    return f"{limit}saves {saved} ({share_text(row)})"


def share_text(row: Mapping[Any, Any]) -> str:
    """Return the part of a step that a change saves; of a range, both ends or the most."""
    if not row["before_ns"]:
        return "–"
    least, most = (percent(row[name] / row["before_ns"]) for name in ("saved_ns", "most_saved_ns"))
    if least == most:
        return least
    return f"{least} to {most}" if row["saved_ns"] > 0 else most


def critical_text(time_by_work: pd.Series) -> str:
    """Return the work on a critical path by its time: `host work 63%, transfer 34%`."""
    total = float(time_by_work.sum())
    longest = time_by_work[time_by_work > LEAST_OF_PATH * total]
    return ", ".join(f"{word} {time / total:.0%}" for word, time in longest.items())


LEAST_OF_PATH = 0.01
"""Part of a critical path from which on a sort of work is named."""


def percent(share: float) -> str:
    """Format a share: in whole percent from a tenth on."""
    return f"{share:.0%}" if abs(share) >= 0.0995 else f"{share:.1%}"


def why_not_replayed(run: Frames) -> str:
    """Return why a run with calls cannot be replayed, in a sentence; empty if it can be."""
    if not run.num_calls:
        return ""
    counts = census(run)
    if not counts.known["issue_ns"]:
        return "The run cannot be replayed: the time of issue is unknown for all calls."
    if not counts.has_ends:
        return "The run cannot be replayed: when calls ended is unknown, as in a fake group."
    try:
        basis_of(run)
    except UsageError as error:
        return f"The run cannot be replayed: {error.found}; {error.why}."
    return ""
