"""Calls that a page shows individually, and the stretches of time in which it has all of them.

A run in memory is shown as a whole. A stored run may have more calls than a page can hold, so the
page shows the calls of the step that it opens with, then the calls around the evidence of its
findings and problems, as far as `MOST_CALLS` reach:

    run        |------------------------------------------------|
    stretches       |opening step|        |evidence|   |evidence|

In between, the timeline shows an `Overview`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import pandas as pd

from commtrace.analyze import Frames
from commtrace.analyze.excerpts.excerpt import Stretch, completed, excerpt, of_ranks, touching
from commtrace.analyze.measures.census import census
from commtrace.figures.timeline import ranks_of
from commtrace.report.evidence import spans_of_calls
from commtrace.report.overview import Overview, edges_ns, overview
from commtrace.units import counted, text_of_duration, text_of_ranks

MOST_CALLS = 250_000
FEW_CALLS = 10_000
"""Number of calls that are shown in any case, if stretches have more than expected."""
MOST_BESIDE = 1_000_000
"""Number of operators and kernels that are read with the calls."""
SHORT_RUN = 6
"""Number of steps up to which a page opens with the whole run."""
WHOLE_RUN = -1

_OPENING_SHARE, _STEP_SHARE, _CALL_SHARE = 1 / 2, 1 / 10, 1 / 50
"""Largest parts of the calls: for the opening step, a step with evidence, and other evidence."""
_AROUND_CALL, _AROUND_STEP = 3, 0.05
"""Time before and after a call or a step that is shown with it, as a part of its duration.

It is more than the page shows around a step, or around the evidence of a finding.
"""


@dataclass(frozen=True, slots=True)
class Detail:
    """Calls that a page shows individually.

    Attributes:
        frames: The calls, with the operators and kernels beside them.
        ranks: Ranks that the timeline shows.
        are_all_ranks: They are all ranks of the run.
        edges: First and last instant of the run, in ns since its start.
        stretches: Stretches of time in which all calls of these ranks are shown, by time; None if
            that is the whole run.
        overview: Shares of time over the run, if there are stretches.
    """

    frames: Frames
    ranks: list[int]
    are_all_ranks: bool
    edges: Stretch
    stretches: list[Stretch] | None = None
    overview: Overview | None = None

    @property
    def is_whole(self) -> bool:
        """True if all calls of the run are shown."""
        return self.are_all_ranks and self.stretches is None


def detail_of(
    frames: Frames, ranks: Sequence[int] | None, evidence: Iterable[Sequence[str]]
) -> Detail:
    """Return the calls that a page shows.

    Args:
        frames: The run.
        ranks: The only ranks that are shown; by default all.
        evidence: Calls of each finding and problem, as `rank:id`, the most important first.

    Raises:
        UsageError: The run has no such rank.
    """
    shown = ranks_of(frames, ranks)
    are_all = shown == ranks_of(frames)
    edges = edges_ns(frames)
    if are_all and not frames.is_stored:
        return Detail(frames, shown, are_all, edges)
    chosen = None if are_all else shown
    if not frames.is_stored or _fits(frames, shown):
        return Detail(of_ranks(frames, chosen), shown, are_all, edges)
    seen = overview(frames, shown, edges)
    lists, budget = list(evidence), _budget(frames)
    stretches: list[Stretch] = []
    rows = pd.Index([], dtype="int64")
    # Calls can be denser than columns of time let expect.
    for share in (1, 1 / 4, 1 / 16, 1 / 64):
        stretches = _stretches(frames, seen, lists, share * budget)
        rows = completed(frames, touching, tuple(stretches), stretches=stretches)
        if len(rows) * len(shown) <= max(2 * budget, FEW_CALLS) * max(frames.num_ranks, 1):
            break
    calls = excerpt(frames, rows, ranks=chosen, stretches=stretches)
    return Detail(calls, shown, are_all, edges, stretches, seen)


def _fits(frames: Frames, ranks: Sequence[int]) -> bool:
    counts = census(frames)
    return sum(counts.ranks[rank] for rank in ranks) <= _budget(frames)


def _budget(frames: Frames) -> float:
    """Return how many calls the page can show with the operators and kernels beside them."""
    counts = census(frames)
    beside = (counts.num_ops + counts.num_kernels) / max(counts.num_calls, 1)
    return min(MOST_CALLS, MOST_BESIDE / max(beside, 1e-9))


def opening_step(frames: Frames) -> tuple[int, pd.DataFrame]:
    """Return the place of the step that a page opens with, and the steps of the first rank.

    It is the step of median length if there are many, else `WHOLE_RUN`.
    """
    steps = frames.timed_steps.sort_values(["rank", "step"])
    steps = steps[steps["rank"] == steps["rank"].min()].reset_index(drop=True)
    if len(steps) <= SHORT_RUN:
        return WHOLE_RUN, steps
    lasts = (steps["end_ns"] - steps["start_ns"]).to_numpy()
    return int(np.argsort(lasts, kind="stable")[len(lasts) // 2]), steps


def _stretches(
    frames: Frames, seen: Overview, evidence: Iterable[Sequence[str]], budget: float
) -> list[Stretch]:
    """Return the stretches that are shown, by time; together they have about `budget` calls."""
    taken: list[Stretch] = []
    left = budget
    for stretch in _wanted(frames, seen, evidence, budget):
        if any(first <= stretch[0] and stretch[1] <= last for first, last in taken):
            continue
        num_calls = seen.num_calls(stretch)
        if num_calls <= left:
            taken = _united([*taken, stretch])
            left -= num_calls
    return taken


def _wanted(
    frames: Frames, seen: Overview, evidence: Iterable[Sequence[str]], budget: float
) -> Iterator[Stretch]:
    """Yield stretches, the most important first."""
    place, of_first = opening_step(frames)
    whole = seen.first_ns, seen.first_ns + seen.column_ns * seen.num_columns
    steps = _spans_of_steps(frames)
    opening = whole
    if place != WHOLE_RUN:
        edges = of_first[["start_ns", "end_ns"]].iloc[place] - frames.start_ns
        opening = _around((int(edges["start_ns"]), int(edges["end_ns"])), _AROUND_STEP, whole)
    yield _shortened(seen, opening, _OPENING_SHARE * budget)
    lists = list(evidence)
    spans = spans_of_calls(frames, {name for calls in lists for name in calls})
    edges = np.array(sorted(steps.values())).reshape(-1, 2)
    for names in zip_longest(*lists):
        for name in names:
            if name not in spans:
                continue
            begin, end = spans[name]
            around = _around((begin, end), _AROUND_CALL, whole)
            after = int(np.searchsorted(edges[:, 0], begin, side="right"))
            if after and begin < edges[after - 1, 1]:
                first, last = map(int, edges[after - 1])
                first, last = _around((first, last), _AROUND_STEP, whole)
                step = min(first, around[0]), max(last, around[1])
                if seen.num_calls(step) <= _STEP_SHARE * budget:
                    yield step
                    continue
            yield _shortened(seen, around, _CALL_SHARE * budget, begin)


def _around(stretch: Stretch, part: float, whole: Stretch) -> Stretch:
    """Return a stretch with the time before and after it, a part of its length, within `whole`."""
    first, last = stretch
    margin = int(part * max(last - first, 1000))
    return max(first - margin, whole[0]), min(last + margin, whole[1])


def _spans_of_steps(frames: Frames) -> dict[int, Stretch]:
    """Return the first and last instant of each step over all ranks."""
    of_steps = frames.timed_steps.groupby("step")
    begins = of_steps["start_ns"].min() - frames.start_ns
    ends = of_steps["end_ns"].max() - frames.start_ns
    return {
        int(str(step)): (int(begin), int(end))
        for step, begin, end in zip(begins.index, begins, ends, strict=True)
    }


def _shortened(seen: Overview, stretch: Stretch, most: float, about: int | None = None) -> Stretch:
    """Return the part of a stretch that has about `most` calls: its beginning, or about a time."""
    num_calls = seen.num_calls(stretch)
    first, last = stretch
    if num_calls <= most:
        return stretch
    share = most / num_calls
    at = first if about is None else about
    return int(at - share * (at - first)), int(at + share * (last - at)) + 1


def _united(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Return the same time as stretches that do not touch each other, by time."""
    found: list[Stretch] = []
    for first, last in sorted(stretches):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


@dataclass(frozen=True, slots=True)
class Shown:
    """Sentences on the calls that a page shows individually.

    Attributes:
        what: The calls that are shown, and those that are not.
        how: Command that writes a page of other calls, with placeholders in capitals.
        command: Beginning of a command that writes a page of a window or steps.
        are_stretches: They are the calls of stretches of time.
    """

    what: str
    how: str
    command: str
    are_stretches: bool


def shown_text(frames: Frames, detail: Detail) -> Shown | None:
    """Return what a page shows individually; None if that is the whole run."""
    if detail.is_whole:
        return None
    num_all, num_shown = frames.num_calls, len(detail.frames.comm)
    sentences = [f"Single calls: {num_shown:,} of {num_all:,} are on this page."]
    if detail.stretches is not None:
        lasts = sum(last - first for first, last in detail.stretches)
        whole = text_of_duration(detail.edges[1] - detail.edges[0])
        sentences.append(
            f"They are all calls in {text_of_duration(lasts)} of {whole}: of the step that the page"
            " opens with, and around the calls that findings and problems name."
        )
    if detail.overview is not None:
        column = text_of_duration(detail.overview.column_ns)
        sentences.append(f"Elsewhere, the timeline shows shares of time in columns of {column}.")
    if not detail.are_all_ranks:
        num_others = len(ranks_of(frames)) - len(detail.ranks)
        sentences.append(
            f"They are of {text_of_ranks(detail.ranks)}; the calls of"
            f" {counted(num_others, 'other rank')} are not shown."
        )
    sentences.append("Numbers, tables and all other pictures are of all calls of all ranks.")
    trace = shlex.quote(str(frames.path)) if frames.path else "TRACE"
    command = f"commtrace report {trace}"
    part = "--steps FIRST:LAST" if len(frames.steps) else "--window FROM:TO"
    options = part if detail.stretches is not None else "--ranks RANKS"
    return Shown(
        " ".join(sentences),
        f"{command} {options} -o part.html",
        command,
        detail.stretches is not None,
    )
