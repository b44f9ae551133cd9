"""The terminal's view of a run as it is now: a `Snapshot` as rich renderables, or as a line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table

from commtrace.escaping import visible
from commtrace.live.life import ENDED, RUNNING
from commtrace.live.snapshot import GroupState, LiveProblem, RankState, Snapshot
from commtrace.live.wording import (
    FAULTS,
    about,
    age_text,
    ages_text,
    alike,
    alike_stacks,
    blocked_text,
    capitalized,
    clock_text,
    is_users,
    names_text,
    now_text,
    shown_groups,
    source_beside,
    steps_text,
    trend_text,
)
from commtrace.tracefile.dump_files import StackDump
from commtrace.units import counted, text_of_bytes, text_of_duration, text_of_ranks
from commtrace_cli.fitting import GAP, shortened
from commtrace_cli.terminal import Text, colour_of_kind

LEVELS = "▁▂▃▄▅▆▇█"
MOST_RANKS = 16
"""Number of ranks up to which each has a row of its own; above, alike ranks share a row."""
_SECOND = 1e9


def frame(snapshot: Snapshot, *, width: int, height: int | None = None) -> RenderableType:
    """Return everything that is known, in at most `height` lines as far as that is possible."""
    rows = 1000 if height is None else max(height - 12 - 2 * len(snapshot.problems), 4)
    parts: list[RenderableType] = [_head(snapshot), *_first_lines(snapshot)]
    parts += [_problem(each) for each in snapshot.problems]
    parts += [Text(f"note: {note}", style="yellow") for note in snapshot.notes]
    if groups := shown_groups(snapshot):
        parts += [Text(), _groups_table(groups[: max(rows // 3, 3)])]
    parts += [Text(), _ranks_table(snapshot, rows, width)]
    return Group(*parts, Text(), *_rates(snapshot), *stacks(snapshot.dumps, most_threads=1))


def stacks(
    dumps: Sequence[StackDump], *, most_threads: int | None = None
) -> Iterator[RenderableType]:
    """Yield the stacks of ranks, with equal stacks only once.

    Args:
        dumps: the dumps to show.
        most_threads: threads of a rank to show, the main thread first; None for all.
    """
    for threads, same in alike_stacks(dumps, most_threads=most_threads):
        first = same[0]
        at = clock_text(first.at_ns)
        yield Text()
        yield Text.assemble(
            (capitalized(text_of_ranks([dump.rank for dump in same])), "bold"),
            (
                f" at {at}, process {first.pid} on {first.host}" if len(same) == 1 else f" at {at}",
                "dim",
            ),
        )
        for call in first.calls:
            since = age_text(max(first.at_ns - call["issue_ns"], 0) / _SECOND)
            of = f" of group {call['group']}" if call["group"] else ""
            yield Text(f"  in flight for {since}: {call['kind']}{of}")
        for thread in threads:
            yield Text(f"  thread {thread.name} (most recent call last):")
            for file, number, function in thread.frames:
                yield Text.assemble(
                    (f"    {file}:{number}", "cyan" if is_users(file) else "dim"), f" {function}"
                )
        hidden = len(first.threads) - len(threads) + first.num_left_out
        if hidden:
            yield Text(f"  and {counted(hidden, 'other thread')}: --dump, without an alarm", "dim")


def _head(snapshot: Snapshot) -> Text:
    name = Path(snapshot.folder).name
    at = clock_text(snapshot.at_ns)
    return Text.assemble(
        (name, "bold"), f"  {snapshot.command}" if snapshot.command else "", (f"  {at}", "dim")
    )


def _first_lines(snapshot: Snapshot) -> Iterator[RenderableType]:
    steps = snapshot.steps
    text = Text(about(snapshot))
    if len(steps.durations_s) > 1:
        text.append(f"  {_sparkline(steps.durations_s[-40:])}", style="cyan")
        text.append(f" {text_of_duration(steps.durations_s[-1] * _SECOND)} a step")
    if trend := trend_text(steps.change):
        text.append(f", {trend}", style="yellow" if steps.change > 0 else "green")
    yield text
    if snapshot.is_gone:
        yield Text("The folder has vanished; below is its last state.", style="bold yellow")
    if snapshot.bytes_left:
        left = text_of_bytes(snapshot.bytes_left)
        yield Text(f"Reading the earlier recording: {left} to go.", style="dim")
    if snapshot.unrecorded:
        yield Text(f"No recording yet of {text_of_ranks(snapshot.unrecorded)}.", style="yellow")


def _sparkline(values: Sequence[float]) -> str:
    # One long step, such as the first, must not flatten all others.
    highest = min(max(values), 4 * median(values))
    if highest <= 0:
        return LEVELS[0] * len(values)
    return "".join(LEVELS[round(min(value / highest, 1) * (len(LEVELS) - 1))] for value in values)


def _problem(problem: LiveProblem) -> RenderableType:
    style = "bold red" if problem.problem in FAULTS else "bold yellow"
    since = f" for {age_text(problem.for_s)}" if not math.isnan(problem.for_s) else ""
    text = Text.assemble((problem.problem + since, style), f"  {problem.text}")
    if source := source_beside(problem):
        text.append(f" (at {source})", style="dim")
    return text


def _table(*headings: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    for heading, justify in headings:
        table.add_column(heading, justify=justify, overflow="ellipsis", no_wrap=True)  # type: ignore[arg-type]
    return table


def _groups_table(groups: Sequence[GroupState]) -> Table:
    table = _table(
        ("Group", "left"), ("In flight", "left"), ("Arrived", "right"), ("Missing", "left"),
        ("For", "right"),
    )  # fmt: skip
    for each in groups:
        num = len(each.arrived) + len(each.missing) + len(each.unknown)
        missing = Text("all arrived", style="dim")
        if each.missing:
            missing = Text(text_of_ranks(each.missing), style="red")
        elif each.unknown:
            missing = Text(f"unknown: {text_of_ranks(each.unknown)}", style="yellow")
        table.add_row(
            Text(each.name), Text(each.call), f"{len(each.arrived)} of {num}", missing,
            age_text(each.for_s),
        )  # fmt: skip
    return table


_OF_RANKS = (
    ("Rank", "left"), ("Now", "left"), ("For", "right"), ("Step", "right"), ("Blocked", "right"),
    ("At", "left"),
)  # fmt: skip
_NOW, _AT = 1, 5
_LEAST = 7


def _ranks_table(snapshot: Snapshot, rows: int, width: int) -> RenderableType:
    together = len(snapshot.ranks) > MOST_RANKS
    lines = alike(snapshot.ranks) if together else [[each] for each in snapshot.ranks]
    cells = [_cells(ranks) for ranks in lines[:rows]]
    table = _table(*_OF_RANKS)
    widths = _widths([[heading for heading, _ in _OF_RANKS], *cells], width)
    for column, most in zip(table.columns, widths, strict=True):
        column.width = most
    for ranks, texts in zip(lines, cells, strict=False):
        # The end of a path says more than its beginning.
        source = Text(shortened(texts[_AT], widths[_AT]), style="dim")
        table.add_row(texts[0], _now(ranks[0]), *texts[_NOW + 1 : _AT], source)
    if len(lines) <= rows:
        return table
    rest = sum(map(len, lines[rows:]))
    return Group(table, Text(f"and {counted(rest, 'rank')} more", style="dim"))


def _cells(ranks: Sequence[RankState]) -> list[str]:
    first = ranks[0]
    source = f"after {first.source}" if first.source and not first.call else first.source
    return [
        names_text(ranks), now_text(first), ages_text(ranks), steps_text(ranks),
        blocked_text(ranks), visible(source),
    ]  # fmt: skip


def _widths(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the width of each column; only what a rank is in, and where, is truncated."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    room = width - sum(widths) + widths[_NOW] + widths[_AT] - GAP * (len(widths) - 1)
    room = max(room, 2 * _LEAST)
    widths[_AT] = min(widths[_AT], max(room - widths[_NOW], room // 2))
    widths[_NOW] = min(widths[_NOW], room - widths[_AT])
    return widths


def _now(rank: RankState) -> Text:
    if rank.life == ENDED or (rank.life == RUNNING and not rank.call):
        return Text(now_text(rank), style="dim")
    is_bad = rank.is_hanging or rank.life != RUNNING
    return Text(now_text(rank), style="bold red" if is_bad else _style_of(rank.call))


def _style_of(call: str) -> str:
    return colour_of_kind(call.partition(" ")[0])


def _rates(snapshot: Snapshot) -> Iterator[RenderableType]:
    window = f"Last {snapshot.window_s:.0f} s"
    if snapshot.kinds:
        text = Text(f"{window}, all ranks: ", style="dim")
        for place, kind in enumerate(snapshot.kinds):
            separator = "" if not place else ", "
            text.append(separator).append(kind.kind, style=colour_of_kind(kind.kind))
            text.append(f" {text_of_bytes(kind.bytes_per_s)}/s ({kind.calls_per_s:,.3g} calls/s)")
        yield text
    else:
        yield Text(f"{window}: no call ended.", style="dim")
    if late := [each for each in snapshot.stragglers if each.share >= 0.005][:4]:
        text = Text("All others waited for ", style="dim")
        text.append(", ".join(f"rank {each.rank} {each.share:.1%}" for each in late))
        yield text.append(" of that time", style="dim")
