"""`commtrace whatif`: the step time of a run with changes, and the changes that pay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from commtrace.errors import UsageError
from commtrace_cli.documents import records, write_csv, write_json
from commtrace_cli.loading import is_silent, load_run
from commtrace_cli.options import changes as changing
from commtrace_cli.options import inputs, outputs, printing, processes, selection
from commtrace_cli.selecting import part_of, selection_of
from commtrace_cli.terminal import Text, check_output, data_console, finish

if TYPE_CHECKING:
    from rich.console import Console

    from commtrace.analyze import Frames
    from commtrace.analyze.replay.prediction import ChangedSteps

EXAMPLE = """
Examples:

- `commtrace whatif run.json` lists the changes that pay, best first
- `commtrace whatif run.json "remove where kind=barrier"`
- `commtrace whatif run.json "bandwidth *2 where mesh_axis=dp" "compute *0.8 where rank=3"`
- `commtrace whatif run.json overlap -o replayed.json`, which other commands take

Changes: `compute *F`, `latency *F` or `latency 5us`, `bandwidth *F` or `bandwidth 50GB/s`,
`payload *F`, `shrink *F`, `batch *F`, `group_size *F`, `node_size N`, `remove`, `async`, `earlier`,
`overlap`, `merge`, `balance`, `usual`, `even` and `cores`, most with `where` and conditions joined
by `and`, as for `commtrace dump`; docs/whatif.md has their meanings.
"""

_MOST = 12


def whatif(
    trace: inputs.Trace,
    changes: changing.Changes = None,
    rows: selection.Rows = _MOST,
    steps: selection.Steps = None,
    window: selection.Window = None,
    all_steps: changing.AllSteps = False,
    output: changing.ReplayedRun = None,
    force: outputs.Force = False,
    as_json: printing.AsJson = False,
    as_csv: printing.AsCsv = False,
    workers: processes.AnalysisWorkers = None,
) -> None:
    """Replay a run with changes: its step time with them, or the changes that pay, best first.

    The run is replayed as a graph of work: each host's work, operators, kernels and waits, and the
    collectives of all ranks. A range says that the trace does not tell latency from bandwidth, or
    lacks when results were used. A change of the program saves at most a limit.
    """
    if not changes and (all_steps or output is not None):
        raise UsageError(
            "cannot replay all steps" if all_steps else "cannot write a replayed run",
            found="no change",
            attempt="a change, such as overlap",
        )
    if output is not None:
        if all_steps:
            raise UsageError(
                "cannot write a replay of all steps",
                found="--all-steps and --output",
                why="steps of a run of many calls are replayed block by block, and not kept",
                attempt="one of the two options",
            )
        check_output(output, force=force, read=[trace])
    frames = part_of(load_run(trace, workers), selection_of(window, steps))
    if changes:
        from commtrace.analyze.whatif.asked import what_if

        answer = what_if(frames, changes, all_steps=all_steps)
        _show(frames, answer, output, as_json=as_json, as_csv=as_csv)
        if not (as_json or as_csv):
            written = [] if output is None else [output]
            finish(written, then=["commtrace", "summary", output or trace])
        return
    from commtrace.analyze import CATALOG

    table = CATALOG["whatif"].function(frames)
    if as_csv:
        write_csv(table)
    elif as_json:
        write_json(frames.run, {CATALOG["whatif"]: table})
    elif not is_silent(frames, trace):
        from commtrace.analyze.replay.lines import folded

        _print_best(data_console(), frames, folded(table.to_dict("records")), rows)
        given = {"--steps": steps, "--window": window}
        part = [word for name, value in given.items() if value for word in (name, value)]
        first = [str(table["text"].iloc[0])] if len(table) else []
        finish([], then=["commtrace", "whatif", trace, *first, *part])


def _show(
    frames: Frames, answer: ChangedSteps, output: Path | None, *, as_json: bool, as_csv: bool
) -> None:
    if as_csv:
        write_csv(answer.effects())
    elif as_json:
        write_json(frames.run, {}, **_facts(answer), effects=records(answer.effects()))
    else:
        _print_answer(data_console(), answer)
    if output is not None:
        from commtrace.analyze.run.frame import trace_of
        from commtrace.tracefile.run_file import write_trace

        write_trace(trace_of(answer.run), output)


def _facts(answer: ChangedSteps) -> dict[str, Any]:
    error = answer.before.error_ns
    critical = answer.time_by_work()
    return {
        "changes": [change.text for change in answer.changes],
        "step_ns": answer.before.step_ns,
        "error_ns": None if math.isnan(error) else error,
        "num_steps": answer.before.num_steps,
        "replayed_step_ns": [*answer.after],
        "saved_ns": [*answer.saved_ns],
        "num_calls": answer.num_changed,
        "num_unknown": answer.num_unknown,
        "critical_path": (critical / critical.sum()).to_dict() if len(critical) else {},
        "num_inferred": answer.num_inferred,
        "num_dependencies": answer.num_dependencies,
    }


def _print_best(
    console: Console, frames: Frames, rows: Sequence[Mapping[Any, Any]], most: int
) -> None:
    from commtrace.analyze.replay.words import change_text, saves_text, why_not_replayed
    from commtrace.analyze.whatif.table import bound_by, step_text

    if reason := why_not_replayed(frames):
        console.print(Text(f"note: {reason}", style="yellow"))
        return
    _print_notices(console, frames)
    console.print(Text(step_text(frames), style="bold"))
    for line in bound_by(frames):
        console.print(Text(line, style="dim"))
    if not rows:
        console.print()
        console.print(Text("No change that was replayed makes a step shorter."))
    for number, row in enumerate(rows[:most], start=1):
        style = "dim" if row["bound"] == "limit" else "bold yellow"
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_row(
            Text(f"{number:>2}", style="dim"),
            Text.assemble((saves_text(row), style), f"  {row['change']}"),
        )
        lines = [("", change_text(row), ""), ("how: ", row["how"], "green")]
        lines += [("replayed: ", text, "dim") for text in row["texts"]]
        for label, text, colour in lines:
            if text:
                shown = _labelled(label, text, colour) if label else Text(text, style=colour)
                grid.add_row("", shown)
        console.print()
        console.print(grid)
    if len(rows) > most:
        console.print()
        console.print(Text(f"{len(rows) - most} more: --rows {len(rows)}", style="dim"))


def _labelled(label: str, text: str, style: str) -> Table:
    """Return a text whose lines stand right of its label."""
    grid = Table.grid()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, style=style), Text(text, style=style))
    return grid


def _print_notices(console: Console, frames: Frames) -> None:
    from commtrace.analyze.notices import notices_of

    for notice in notices_of(frames, "whatif"):
        console.print(Text(f"note: {notice.text}", style="yellow"))


def _print_answer(console: Console, answer: ChangedSteps) -> None:
    from commtrace.analyze.replay.lines import (
        HEADINGS,
        critical_line,
        effect_lines,
        extent_line,
        step_line,
        verdict_line,
    )

    _print_notices(console, answer.basis)
    for change in answer.changes:
        console.print(Text(change.text, style="dim"))
    console.print(Text.assemble((step_line(answer), "bold"), f"  {verdict_line(answer)}"))
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("", overflow="fold")
    for name in HEADINGS:
        table.add_column(name, justify="right", no_wrap=True)
    for cells in effect_lines(answer):
        table.add_row(*map(Text, cells))
    if table.row_count:
        console.print(table)
    for line in filter(None, (critical_line(answer), extent_line(answer))):
        console.print(Text(line, style="dim"))
