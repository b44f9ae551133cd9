"""Differences of a run from its baseline, in sentences: its steps, kinds and bytes.

A kind *became* others if, of calls with an equal payload, as many are gone in each step as each of
the others is more often made: all_reduce, for instance, becomes reduce_scatter and all_gather.
Times are means over steady steps; they differ if they are further apart than `SURE` standard errors
of their difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pandas as pd

from commtrace.analyze.comparisons.diff import KNOWN, in_steps_of_all, per_rank
from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.traffic.by_step import by_step
from commtrace.units import text_of_bytes, text_of_duration, text_of_measured

SURE = 2.0
_NEARLY = 0.02
"""Largest difference of bytes that are called the same, as a fraction."""
_ROUNDING = 1e-6
_LEAST_CALLS = 1e-3
_LEAST_PART = 0.005
"""Smaller changes would be printed as 0 %."""


@dataclass(frozen=True, slots=True)
class Became:
    """Calls of a kind in each step and rank that became calls of other kinds.

    Attributes:
        kind: The kind before.
        kinds: The kinds after.
        num_calls: Calls of a rank in a step.
        sent_before: Bytes that they sent.
        sent_after: Bytes that the calls of the other kinds send.
    """

    kind: str
    kinds: tuple[str, ...]
    num_calls: float
    sent_before: float
    sent_after: float

    def text(self) -> str:
        """Return a sentence without a period."""
        each = "each" if self.num_calls > 1 else "the"
        num = f" ({self.num_calls:,.3g} in all)" if self.num_calls > 1 else ""
        return f"{each} {self.kind}{num} became {self._others()} {self._sent()}"

    def text_of_opposite(self) -> str:
        """Return the sentence if the calls of `kinds` became one of `kind`."""
        num = f" ({self.num_calls:,.3g} of each)" if self.num_calls > 1 else ""
        opposite = replace(self, sent_before=self.sent_after, sent_after=self.sent_before)
        return f"{self._others()}{num} became {_article(self.kind)} {self.kind} {opposite._sent()}"

    def _others(self) -> str:
        return " and ".join(f"{_article(kind)} {kind}" for kind in self.kinds)

    def _sent(self) -> str:
        if math.isnan(self.sent_before + self.sent_after):
            return "of the same payload"
        if abs(self.sent_after - self.sent_before) <= _NEARLY * self.sent_before:
            return "of the same bytes"
        before, after = text_of_bytes(self.sent_before), text_of_bytes(self.sent_after)
        return f"of the same payload, {after} sent instead of {before}"


def _article(word: str) -> str:
    return "an" if word[:1] in "aeiou" else "a"


def became(table: pd.DataFrame) -> list[Became]:
    """Return the kinds that became others in a table of changes, the most calls first."""
    found: dict[tuple[str, tuple[str, ...]], list[Became]] = {}
    for _, calls in table.groupby("payload_bytes"):
        change = calls["calls_change"]
        gone, more = calls[change < -_ROUNDING], calls[change > _ROUNDING]
        if len(gone) != 1 or more.empty:
            continue
        num = -gone["calls_change"].iloc[0]
        if ((more["calls_change"] - num).abs() > _ROUNDING * num).any():
            continue
        kinds = tuple(sorted(more["kind"], reverse=True))
        sent = -gone["wire_bytes_change"].iloc[0], more["wire_bytes_change"].sum(skipna=False)
        each = Became(gone["kind"].iloc[0], kinds, num, *sent)
        found.setdefault((each.kind, kinds), []).append(each)
    sums = [
        Became(
            *key,
            sum(each.num_calls for each in all_of),
            sum(each.sent_before for each in all_of),
            sum(each.sent_after for each in all_of),
        )
        for key, all_of in found.items()
    ]
    return sorted(sums, key=lambda each: -each.num_calls)


def _by_payload(before: Frames, after: Frames) -> tuple[pd.DataFrame, bool]:
    """Return the changes by kind and payload of a call, in steps if both runs mark any."""
    per_step = in_steps_of_all((before, after))
    keys = ["scope", "kind", "payload_bytes"]
    first, second = (
        _known_only(per_rank(frames, ["kind", "payload_bytes"], per_step))
        for frames in (before, after)
    )
    places = first.index.union(second.index).set_names(keys)
    both = pd.DataFrame(index=places)
    for table, when in ((first, "before"), (second, "after")):
        # A kind that a run does not use counts 0; bytes that it does not know stay unknown.
        whole = table.set_axis(table.index.set_names(keys)).reindex(places, fill_value=0.0)
        both = both.join(whole.add_suffix(f"_{when}"))
    for name in ("calls", "wire_bytes"):
        both[f"{name}_change"] = both[f"{name}_after"] - both[f"{name}_before"]
    table = both.reset_index()
    table = table[(table["scope"] == ("step" if per_step else "run"))]
    return table[table["payload_bytes"].astype("float64") > 0], per_step


def _known_only(sums: pd.DataFrame) -> pd.DataFrame:
    """Return calls and bytes sent, the latter nan where some calls lack it."""
    is_known = (sums["calls"] - sums[KNOWN["wire_bytes"]]).abs() <= _ROUNDING
    return sums[["calls"]].assign(wire_bytes=sums["wire_bytes"].where(is_known))


@dataclass(frozen=True, slots=True)
class Measured:
    """A mean over steady steps and its standard error, in ns; nan if unknown."""

    mean_ns: float
    error_ns: float


def of_steps(frames: Frames, column: str) -> Measured:
    """Return the mean of a column of table `by_step` over the steady steps."""
    table = by_step(frames)
    values = table.loc[is_steady(frames, table["step"]), column].dropna()
    error = values.std() / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Measured(float(values.mean()) if len(values) else math.nan, float(error))


def bound_ns(before: Frames, after: Frames, column: str) -> float:
    """Return the largest difference of the runs' means that may be noise; nan if unknown."""
    errors = (of_steps(frames, column).error_ns for frames in (before, after))
    return SURE * math.hypot(*errors)


def time_sentence(before: Frames, after: Frames, column: str, what: str) -> str:
    """Compare a time of the steps: `a step takes 12.0 ± 0.1 ms instead of ...`; "" if unknown."""
    first, second = (of_steps(frames, column) for frames in (before, after))
    change = second.mean_ns - first.mean_ns
    if math.isnan(change):
        return ""
    texts = [text_of_measured(each.mean_ns, each.error_ns) for each in (first, second)]
    bound = bound_ns(before, after, column)
    if math.isnan(bound):
        return f"{what} {texts[1]} instead of {texts[0]}; too few steps tell if that is noise"
    if abs(change) <= bound:
        noise = f"no more than noise (± {text_of_duration(bound)})"
        return f"{what} {texts[1]}, before {texts[0]}: {noise}"
    part = f" ({change / first.mean_ns:+.0%})" if first.mean_ns else ""
    return f"{what} {texts[1]} instead of {texts[0]}{part}"


def _exchanges(table: pd.DataFrame) -> tuple[list[Became], list[Became]]:
    """Return the kinds that became others, and in reverse those that others became."""
    changes = [f"{name}_change" for name in ("calls", "wire_bytes")]
    opposite = table.assign(**{name: -table[name] for name in changes})
    return became(table), [each for each in became(opposite) if len(each.kinds) > 1]


def count_sentences(before: Frames, after: Frames) -> Iterator[str]:
    """Yield sentences on calls that became others, on other calls, and on bytes sent."""
    table, per_step = _by_payload(before, after)
    if table.empty:
        return
    split, joined = _exchanges(table)
    yield from (each.text() for each in split)
    yield from (each.text_of_opposite() for each in joined)
    others = table.groupby("kind")["calls_change"].sum()
    for sign, each in [*((1, each) for each in split), *((-1, each) for each in joined)]:
        others[each.kind] += sign * each.num_calls
        others[list(each.kinds)] -= sign * each.num_calls
    of_step = "a step" if per_step else "a rank"
    exchanged = {kind for each in (*split, *joined) for kind in (each.kind, *each.kinds)}
    for kind, change in others.items():
        if abs(change) > _LEAST_CALLS:
            more = "more" if change > 0 else "fewer"
            besides = " besides" if kind in exchanged else ""
            yield f"{abs(change):,.3g} {more} {kind} in {of_step}{besides}"
    first, second = (table[f"wire_bytes_{when}"].sum(skipna=False) for when in ("before", "after"))
    if math.isnan(first + second):
        return
    part = second / first - 1 if first else math.inf
    instead = "as before" if abs(part) < _LEAST_PART else ""
    instead = instead or f"instead of {text_of_bytes(first)}{f' ({part:+.0%})' if first else ''}"
    yield f"a rank sends {text_of_bytes(second)} in {'a step' if per_step else 'all'}, {instead}"


def sentences(before: Frames, after: Frames) -> list[str]:
    """Return what the second run does otherwise, the most important first."""
    times = (
        _step_sentence(before, after),
        time_sentence(before, after, "blocked_ns", "communication blocks a rank in it for"),
    )
    return _capitalized([*filter(None, times), *count_sentences(before, after)])


def headlines(before: Frames, after: Frames) -> list[str]:
    """Return what totals do not say: the time of a step, and kinds that became others."""
    table, _ = _by_payload(before, after)
    split, joined = _exchanges(table) if len(table) else ([], [])
    texts = (_step_sentence(before, after), *(each.text() for each in split))
    return _capitalized([*filter(None, texts), *(each.text_of_opposite() for each in joined)])


def _step_sentence(before: Frames, after: Frames) -> str:
    return time_sentence(before, after, "duration_ns", "a step takes")


def _capitalized(texts: list[str]) -> list[str]:
    return [text[0].upper() + text[1:] for text in texts]
