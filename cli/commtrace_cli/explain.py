"""`commtrace explain`: details of a communication call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from commtrace_cli.documents import write_document
from commtrace_cli.fitting import fitted, omissions
from commtrace_cli.loading import load_run, say_replayed
from commtrace_cli.options import inputs, printing, selection
from commtrace_cli.terminal import Text, data_console, finish, styled

if TYPE_CHECKING:
    from commtrace.analyze.story import Story
    from commtrace.views.explained import Explained

EXAMPLE = """
Examples:

- `commtrace explain run.json longest`
- `commtrace explain run.json 0:92` is call 92 of rank 0, from `commtrace table run.json calls`
- `commtrace explain run.json biggest --json`
"""

_MARGIN = 9  # the width of the longest heading, plus a gap
_WIDE = 72  # wide enough for a table with that margin


def explain(
    trace: inputs.Trace,
    call: selection.Call,
    rows: selection.Rows = 12,
    as_json: printing.AsJson = False,
) -> None:
    """Explain a call: its source line, reason, data, time and peers.

    Shows the source line, the module and operator, the source and target layouts, the candidates
    with their costs, the steps of the redistribution, the call itself, and the arrival of each
    peer. Unknown values are listed with the reason.
    """
    frames = load_run(trace)
    from commtrace.analyze.run.program_folder import program_folder
    from commtrace.analyze.story import explain as story_of
    from commtrace.analyze.story import find_call
    from commtrace.views.explained import Explained

    say_replayed(frames)
    story = story_of(frames, find_call(frames, call))
    if as_json:
        write_document(frames.run, {"story": story})
        return
    _print(Explained(story, program_folder(frames)), rows)
    following = next((peer for peer in reversed(story.peers) if not peer.is_this), None)
    other = f"{following.rank}:{following.id}" if following else "longest"
    finish([], then=["commtrace", "explain", trace, other])


def _print(explained: Explained, rows: int) -> None:
    console = data_console()
    console.print(styled(explained.title))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=_MARGIN - 2, style="dim")
    grid.add_column(overflow="fold")
    for heading, lines in explained.parts():
        for number, line in enumerate(lines):
            grid.add_row("" if number else heading, styled(line))
    console.print(grid)
    if len(explained.story.peers) > 1:
        console.print(_arrivals(explained.story, rows, console.width))
    for lines in (*explained.findings(), explained.notes()):
        if lines:
            console.print()
        for line in lines:
            console.print(styled(line))


def _arrivals(story: Story, rows: int, width: int) -> Padding:
    """Return a table of each peer's arrival, waiting and transfer time."""
    from commtrace.views.explained import NUMBERS, arrivals, few_peers

    shown = few_peers(story.peers, rows)
    columns = arrivals(shown)
    margin = _MARGIN if width >= _WIDE else 0
    drawn = fitted(
        {name: name for name in columns} | {"remark": ""},
        columns,
        width=width - margin,
        numbers=NUMBERS,
        importance=("call", "arrived", "waited", "remark"),
    )
    lines: list[RenderableType] = [drawn.table]
    if len(shown) < len(story.peers):
        lines.append(Text(f"{len(story.peers) - len(shown)} more: --rows {len(story.peers)}"))
    if text := omissions(
        [name or "remark" for name in drawn.left_out], drawn.num_truncated, "with --json"
    ):
        lines.append(Text(text, style="dim"))
    return Padding(Group(*lines), (0, 0, 0, margin), expand=False)
