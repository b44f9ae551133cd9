"""Texts of a snapshot, shared by the terminal and the page: ages, rates, groups of ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import dropwhile, groupby

from commtrace.live.life import ENDED, RUNNING
from commtrace.live.snapshot import GroupState, LiveProblem, RankState, Snapshot
from commtrace.tracefile.dump_files import StackDump, ThreadStack
from commtrace.units import counted, text_of_bytes, text_of_ranks

_SECOND = 1e9
FAULTS = ("hang", "mismatch", "died", "silent", "gone")
"""Problems that end a run, or keep it from going on."""


def clock_text(at_ns: int) -> str:
    """Return a time of the day."""
    return time.strftime("%H:%M:%S", time.localtime(at_ns / _SECOND))


def trend_text(change: float) -> str:
    """Return the text of a trend of steps; empty if it is small or unknown."""
    if math.isnan(change) or abs(change) < 0.05:
        return ""
    return f"{abs(change):.0%} {'slower' if change > 0 else 'faster'} than before"


def now_text(rank: RankState) -> str:
    """Return the text of a rank's state."""
    if rank.life == ENDED:
        return "ended"
    if rank.life != RUNNING:
        text = f"{rank.life}, last sign {age_text(rank.sign_age_s)} ago"
        return f"{text}, in {rank.call}" if rank.call else text
    if not rank.call:
        return "outside of communication"
    more = f" +{rank.num_in_flight - 1}" if rank.num_in_flight > 1 else ""
    return rank.call + ("" if rank.is_blocked else " (async)") + more


def steps_text(ranks: Sequence[RankState]) -> str:
    """Return the last steps of ranks."""
    steps = [each.step for each in ranks if each.step >= 0]
    if not steps:
        return "–"
    return f"{min(steps):,}" + (f"–{max(steps):,}" if min(steps) < max(steps) else "")


def blocked_text(ranks: Sequence[RankState]) -> str:
    """Return the mean blocked share of ranks."""
    shares = [each.blocked_share for each in ranks if not math.isnan(each.blocked_share)]
    return f"{sum(shares) / len(shares):.0%}" if shares else "–"


def ages_text(ranks: Sequence[RankState]) -> str:
    """Return the text of how long ranks have been in their state."""
    ages = [each.for_s for each in ranks if not math.isnan(each.for_s)]
    return span_text(ages) if ages and ranks[0].life != ENDED else "–"


def names_text(ranks: Sequence[RankState]) -> str:
    """Return the numbers of ranks, and their count."""
    name = text_of_ranks([each.rank for each in ranks], most=4).partition(" ")[2]
    return f"{name} ({len(ranks):,})" if len(ranks) > 1 else name


def alike_stacks(
    dumps: Sequence[StackDump], *, most_threads: int | None = None
) -> list[tuple[tuple[ThreadStack, ...], list[StackDump]]]:
    """Return the different stacks of ranks, each with its ranks.

    Args:
        dumps: the dumps.
        most_threads: threads of a rank, the main thread first; None for all.
    """
    alike: dict[tuple[ThreadStack, ...], list[StackDump]] = {}
    for dump in dumps:
        threads = tuple(
            replace(each, native_id=-1, frames=tuple(dropwhile(_is_start, each.frames)))
            for each in dump.threads[:most_threads]
        )
        alike.setdefault(threads, []).append(dump)
    return list(alike.items())


_STARTERS = (
    "commtrace/launching/bootstrap.py",
    "commtrace/launching/record_program.py",
    "multiprocessing/spawn.py",
)


def _is_start(frame: tuple[str, int, str]) -> bool:
    """Return whether a frame only starts the program."""
    return frame[0].startswith("<frozen ") or frame[0].endswith(_STARTERS)


def is_users(file: str) -> bool:
    """Return whether a file of a stack is the user's own, by its path."""
    return "site-packages" not in file and "/lib/python" not in file and not file.startswith("<")


def line(snapshot: Snapshot) -> str:
    """Return the state as a line, for logs."""
    parts = [clock_text(snapshot.at_ns), about(snapshot)]
    if snapshot.ranks:
        parts.append(f"{text_of_bytes(sum(each.bytes_per_s for each in snapshot.kinds))}/s")
    waiting = [each for each in shown_groups(snapshot) if each.missing]
    if waiting:
        first = waiting[0]
        parts.append(
            f"{first.call} of {first.name}: {text_of_ranks(first.missing)} missing for "
            f"{age_text(first.for_s)}"
        )
    return "  ".join(filter(None, parts))


def source_beside(problem: LiveProblem) -> str:
    """Return the line of a problem; empty if its text has it."""
    return "" if problem.source in problem.text else problem.source


def problem_line(problem: LiveProblem) -> str:
    """Return a problem as a line."""
    source = source_beside(problem)
    where = f" (at {source})" if source else ""
    since = f" for {age_text(problem.for_s)}" if not math.isnan(problem.for_s) else ""
    return f"{problem.problem}{since}: {problem.text}{where}"


def about(snapshot: Snapshot) -> str:
    """Return ranks, steps and blocked time in one line."""
    steps = snapshot.steps
    parts = [num_ranks_text(snapshot)]
    if steps.step >= 0:
        rate = f", {steps.per_s:.3g} steps/s" if not math.isnan(steps.per_s) else ""
        parts.append(f"step {steps.step:,}{rate}")
    if not math.isnan(snapshot.blocked_share):
        parts.append(f"blocked {snapshot.blocked_share:.0%}")
    return ", ".join(parts)


def num_ranks_text(snapshot: Snapshot) -> str:
    """Return how many ranks run and have ended."""
    if not snapshot.ranks:
        return "no rank has begun to record"
    total, lives = snapshot.world_size, [each.life for each in snapshot.ranks]
    running, ended = lives.count(RUNNING), lives.count(ENDED)
    parts = [f"{running} of {counted(total, 'rank')} running"]
    if ended:
        parts = [f"all {counted(total, 'rank')} ended"] if ended == total else parts
        parts += [f"{ended} ended"] if ended != total else []
    return ", ".join(parts)


def age_text(seconds: float) -> str:
    """Return an age in tenths of seconds, or in minutes and seconds."""
    if math.isnan(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def shown_groups(snapshot: Snapshot) -> list[GroupState]:
    """Return the groups with a wait of at least a second, or all if there is a problem."""
    return [each for each in snapshot.groups if each.for_s >= 1 or snapshot.problems]


def span_text(ages: Sequence[float]) -> str:
    """Return the ages of several ranks."""
    shortest, longest = min(ages), max(ages)
    if longest - shortest < max(0.1 * longest, 0.5):
        return age_text(longest)
    return f"{age_text(shortest)} – {age_text(longest)}"


def alike(ranks: Sequence[RankState]) -> list[list[RankState]]:
    """Return ranks grouped by equal state: ranks in trouble first, then the longest waits."""

    def doing(rank: RankState) -> tuple[object, ...]:
        return (rank.life, rank.is_hanging, rank.call, rank.is_blocked, rank.source)

    alike = [list(each) for _, each in groupby(sorted(ranks, key=doing), key=doing)]

    def order(each: list[RankState]) -> tuple[object, ...]:
        first = each[0]
        ages = [rank.for_s for rank in each if not math.isnan(rank.for_s)]
        is_well = first.life in (RUNNING, ENDED)
        return (is_well, not first.is_hanging, first.life == ENDED, -max(ages, default=0.0))

    return sorted(alike, key=order)


def capitalized(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]
