"""`commtrace whatif`: the step time of a run with changes, and the changes that pay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table

from commtrace.units import counted, text_of_duration
from commtrace_cli.documents import write_csv, write_json
from commtrace_cli.loading import is_silent, load_run
from commtrace_cli.options import changes as changing
from commtrace_cli.options import inputs, outputs, printing, processes, selection
from commtrace_cli.selecting import part_of, selection_of
from commtrace_cli.terminal import Text, check_output, data_console, finish

if TYPE_CHECKING:
    from rich.console import Console

    from commtrace.analyze import Frames
    from commtrace.analyze.replay.whatif import Answer

EXAMPLE = """
Examples:

- `commtrace whatif run.json` lists the changes that pay, best first
- `commtrace whatif run.json "remove where kind=barrier"`
- `commtrace whatif run.json "bandwidth *2 where mesh_axis=dp" "compute *0.8 where rank=3"`
- `commtrace whatif run.json overlap -o replayed.json`, which other commands take

Changes: `compute *F`, `latency *F` or `latency 5us`, `bandwidth *F` or `bandwidth 50GB/s`,
`payload *F`, `shrink *F`, `remove`, `async`, `earlier`, `overlap`, `merge` and `balance`, each with
`where` and conditions joined by `and`, as of `commtrace table`.
"""

_MOST = 12


def whatif(
    trace: inputs.Trace,
    changes: changing.Changes = None,
    rows: selection.Rows = _MOST,
    steps: selection.Steps = None,
    output: changing.ReplayedRun = None,
    force: outputs.Force = False,
    as_json: printing.AsJson = False,
    as_csv: printing.AsCsv = False,
    workers: processes.AnalysisWorkers = None,
) -> None:
    """Replay a run with changes: its step time with them, or the changes that pay, best first.

    The run is replayed as a graph of work: each host's work, operators, kernels and waits, and the
    collectives of all ranks. A range says that the trace does not tell latency from bandwidth, or
    lacks when results were used. A limit cannot be reached by a change of the program.
    """
    if output is not None:
        check_output(output, force=force, read=[trace])
    frames = part_of(load_run(trace, workers), selection_of(steps=steps))
    from commtrace.analyze import CATALOG

    if not changes:
        table = CATALOG["whatif"].function(frames)
        if as_csv:
            write_csv(table)
        elif as_json:
            write_json(frames.run, {CATALOG["whatif"]: table})
        elif not is_silent(frames, trace):
            _print_best(data_console(), frames, table.head(rows).to_dict("records"), len(table))
            first = table["text"].iloc[0] if len(table) else ""
            finish([], then=["commtrace", "whatif", trace, *([str(first)] if first else [])])
        return
    from commtrace.analyze.replay.effects import effects
    from commtrace.analyze.replay.whatif import what_if

    answer = what_if(frames, changes)
    if as_csv:
        write_csv(effects(answer))
    elif as_json:
        write_json(frames.run, {}, **_facts(answer), effects=effects(answer).to_dict("records"))
    else:
        _print_answer(data_console(), answer, effects(answer).to_dict("records"))
    if output is not None:
        from commtrace.analyze.run.frame import trace_of
        from commtrace.tracefile.run_file import write_trace

        write_trace(trace_of(answer.run), output)
    if not (as_json or as_csv):
        written = [] if output is None else [output]
        finish(written, then=["commtrace", "summary", output or trace])


def _facts(answer: Answer) -> dict[str, Any]:
    least, most = answer.saved_ns
    return {
        "changes": [change.text for change in answer.changes],
        "step_ns": answer.before.step_ns,
        "error_ns": answer.before.error_ns,
        "num_steps": answer.before.num_steps,
        "replayed_step_ns": [*answer.after],
        "saved_ns": [least, most],
        "num_calls": len(answer.changed.rows),
        "num_unknown": answer.changed.num_unknown,
        "num_inferred": answer.num_inferred,
        "num_dependencies": answer.num_dependencies,
    }


def _step(answer_or_row: Mapping[str, Any]) -> str:
    error = answer_or_row["error_ns"]
    return text_of_duration(answer_or_row["before_ns"]) + (
        f" ± {text_of_duration(error)}" if error == error else ""
    )


def _print_best(
    console: Console, frames: Frames, rows: list[dict[Any, Any]], num: int
) -> None:
    from commtrace.analyze.replay.whatif import bound_by, step_text

    console.print(Text(step_text(frames), style="bold"))
    for line in bound_by(frames):
        console.print(Text(line, style="dim"))
    if not rows:
        console.print()
        console.print(Text("No change that was replayed makes a step shorter."))
    for number, row in enumerate(rows, start=1):
        console.print()
        style = "dim" if row["bound"] == "limit" else "bold yellow"
        console.print(Text.assemble((f"{number:>2}  ", "dim"), (_saves(row), style), f"  {row['change']}"))
        for label, text, colour in (("how", row["how"], "green"), ("replayed", row["text"], "dim")):
            if text:
                console.print(Padding(Text(f"{label}: {text}", style=colour), (0, 0, 0, 4), expand=False))
    if num > len(rows):
        console.print()
        console.print(Text(f"{num - len(rows)} more: --rows {num}", style="dim"))


def _saves(row: Mapping[Any, Any]) -> str:
    least, most = text_of_duration(row["saved_ns"]), text_of_duration(row["most_saved_ns"])
    if row["bound"] == "range":
        return f"saves {least} to {most}" if row["saved_ns"] > 0 else f"saves at most {most}"
    limit = "limit: " if row["bound"] == "limit" else ""
    return f"{limit}saves {least} ({row['share']:.1%})"


def _print_answer(console: Console, answer: Answer, rows: list[dict[Any, Any]]) -> None:
    before, (least, most) = answer.before, answer.after
    unit = "step" if before.num_steps else "run"
    error = f" ± {text_of_duration(before.error_ns)}" if before.error_ns == before.error_ns else ""
    after = text_of_duration(most)
    if text_of_duration(least) != after:
        after = f"{text_of_duration(least)} to {after}"
    saved = before.step_ns - most
    share = f"{abs(saved) / before.step_ns:.1%}" if before.step_ns else ""
    verdict = f"saves {text_of_duration(saved)}" if saved >= 0 else f"costs {text_of_duration(-saved)}"
    for change in answer.changes:
        console.print(Text(change.text, style="dim"))
    console.print(
        Text.assemble(
            (f"{unit}  {text_of_duration(before.step_ns)}{error}  ->  {after}", "bold"),
            f"  {verdict} ({share})",
        )
    )
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name, justify in (("", "left"), ("before", "right"), ("after", "right"), ("saved", "right")):
        table.add_column(name, justify=justify)
    for row in rows:
        of = {"rank": "step of ", "kind": "blocked in ", "wait state": ""}[row["of"]]
        cells = [text_of_duration(row[name]) for name in ("before_ns", "after_ns", "saved_ns")]
        table.add_row(Text(of + row["name"]), *map(Text, cells))
    console.print(table)
    notes = [counted(len(answer.changed.rows), "call") + " changed"]
    if answer.changed.num_unknown:
        notes.append(f"{answer.changed.num_unknown} left alone: the trace lacks their data times")
    notes.append(
        f"{answer.num_inferred} of {answer.num_dependencies} dependencies are inferred"
    )
    console.print(Text("; ".join(notes), style="dim"))
