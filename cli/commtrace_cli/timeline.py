"""`commtrace timeline`: communication of each rank over time, in the terminal or as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.errors import UsageError
from commtrace.selection import Selection
from commtrace.units import text_of_duration
from commtrace_cli.loading import is_silent, load_run
from commtrace_cli.options import inputs, outputs, selection
from commtrace_cli.selecting import selection_of
from commtrace_cli.terminal import Text, check_output, data_console, finish, working

if TYPE_CHECKING:
    from rich.console import Console

    from commtrace.analyze import Frames

EXAMPLE = """
Examples:

- `commtrace timeline run.json`
- `commtrace timeline run.json --steps 2:3 --ranks 0-7`
- `commtrace timeline run.json --window 1.5s:2s -o timeline.html`

Above 16,000 waits and transfers, the picture shows shares of time; select a window or steps to see
single calls.
"""


def timeline(
    trace: inputs.Trace,
    ranks: selection.ChosenRanks = None,
    window: selection.Window = None,
    steps: selection.Steps = None,
    rows: selection.Rows = 30,
    output: outputs.PictureOutput = None,
    force: outputs.Force = False,
) -> None:
    """Show the communication, waiting and computation of each rank over time.

    In the terminal, a letter is the predominant kind of communication in a time interval: capitals
    for transfer, lower case for waiting for a rank. `-o` writes an interactive picture.
    """
    if output is not None:
        from commtrace.report.picture import check_format

        check_format(output)
        check_output(output, force=force, read=[trace])
    asked = selection_of(window, steps, ranks)
    frames = load_run(trace)
    if output is None and is_silent(frames, trace):
        return
    from commtrace.analyze.excerpts.time_window import window_of_steps
    from commtrace.figures.timeline import ranks_of as ranks_in

    chosen, window_ns = ranks_in(frames, asked.ranks), asked.window_ns
    if asked.steps is not None:
        window_ns = _overlap(window_of_steps(frames, *asked.steps), window_ns)
    window_ns = _within_run(frames, window_ns)
    if output is None:
        _print(frames, window_ns, chosen, rows)
        finish([], then=["commtrace", "timeline", trace, "-o", "timeline.html"])
        return
    from commtrace.report.picture import write_timeline

    with working(f"drawing {output}"):
        write_timeline(frames, output, Selection(window_ns, ranks=chosen))
    finish([output], then=["commtrace", "report", trace])


def _overlap(steps_ns: tuple[int, int], window_ns: tuple[int, int] | None) -> tuple[int, int]:
    """Return the intersection of steps and a window.

    Raises:
        UsageError: it is empty.
    """
    if window_ns is None:
        return steps_ns
    first, last = max(steps_ns[0], window_ns[0]), min(steps_ns[1], window_ns[1])
    if last <= first:
        raise UsageError(
            "cannot show these steps in that window",
            found=f"steps from {' to '.join(map(text_of_duration, steps_ns))}",
            attempt="either --steps or --window",
        )
    return first, last


def _within_run(frames: Frames, window_ns: tuple[int, int] | None) -> tuple[int, int]:
    """Return the part of a window within the run; by default, from the first event to the last.

    Raises:
        UsageError: it is empty.
    """
    start = frames.start_ns
    edges = [each for part in frames.by_ranks(_edges_of_part) for each in part]
    first = min((begin - start for begin, _ in edges), default=0)
    last = max((end - start for _, end in edges), default=0)
    if window_ns is None:
        return first, max(last, first + 1)
    if window_ns[0] >= last:
        raise UsageError(
            f"nothing to show from {text_of_duration(window_ns[0])} on",
            found=f"a run whose last event ends {text_of_duration(last)} after its start",
            attempt="another window",
        )
    return window_ns[0], min(last, window_ns[1])


def _edges_of_part(part: Frames) -> list[tuple[int, int]]:
    """Return the first and last instants of the calls and of the steps, as far as there are any."""
    from commtrace.analyze.measures.arrivals import end_ns

    issue, steps = part.comm["issue_ns"], part.timed_steps
    is_issued = issue >= 0
    spans = (
        (issue[is_issued], end_ns(part.comm)[is_issued]),
        (steps["start_ns"], steps["end_ns"]),
    )
    return [(int(begin.min()), int(end.max())) for begin, end in spans if len(begin)]


def _print(frames: Frames, window_ns: tuple[int, int], chosen: list[int], rows: int) -> None:
    from commtrace.analyze import CATALOG, notices_of
    from commtrace_cli.text_timeline import has_room_for_shares, legend, timeline_lines

    console = data_console()
    console.print(Text(str(frames.run.get("command") or frames.path or ""), style="bold"))
    first, last = map(text_of_duration, window_ns)
    has_shares = has_room_for_shares(console.width, chosen[:rows])
    parts = "shares of that time" if has_shares else "omitted: the terminal is too narrow"
    caption = f"{first} to {last} since the run began; blocked and waiting are {parts}"
    console.print(Text(caption, style="dim"))
    for notice in notices_of(frames, "timeline"):
        console.print(Text(f"note: {notice.text}", style="yellow"))
    console.print()
    lines = timeline_lines(frames, window_ns, chosen[:rows], console.width)
    for line in lines:
        console.print(line, no_wrap=True, crop=True, highlight=False)
    if len(chosen) > rows:
        console.print(Text(f"{len(chosen) - rows} more ranks: --rows {len(chosen)}", style="dim"))
    console.print()
    kinds = CATALOG["by_kind"].function(frames)["kind"].tolist()
    has_phases = any(line.plain.startswith("phase") for line in lines)
    for line in legend(kinds, has_phases=has_phases, width=console.width):
        console.print(line, highlight=False)
    _print_straggler(console, frames)


def _print_straggler(console: Console, frames: Frames) -> None:
    from commtrace.analyze import CATALOG

    ranks = CATALOG["by_rank"].function(frames)
    worst = ranks.nlargest(1, "caused_wait_ns").to_dict("records")
    if len(ranks) > 1 and worst and worst[0]["caused_wait_ns"] > 0:
        caused = text_of_duration(worst[0]["caused_wait_ns"])
        text = f"Straggler: ranks wait longest for rank {worst[0]['rank']}, {caused} in the run."
        console.print(Text(text), highlight=False)
