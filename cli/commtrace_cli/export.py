"""`commtrace export`: conversion of a run to the formats of other tools."""

from __future__ import annotations

from pathlib import Path

from commtrace.errors import UsageError
from commtrace.exporters import FORMATS
from commtrace_cli.loading import load_run
from commtrace_cli.options import inputs, outputs, selection
from commtrace_cli.selecting import part_of, selection_of
from commtrace_cli.terminal import check_output, default_path, finish, say, working

EXAMPLE = """
Examples:

- `commtrace export run.json --to perfetto` and open the file at https://ui.perfetto.dev
- `commtrace export run.json --to speedscope -o where.json` for https://www.speedscope.app
- `commtrace export run.json --to csv -o tables/` writes a file of each table
- `commtrace export RUN.comm --to perfetto --steps 3:5 --ranks 0-7`
- `commtrace export run.json --to parquet` with `pip install 'commtrace[parquet]'`
- `commtrace export run.json --to chakra -o et/` with `pip install 'commtrace[chakra]'`, and then
  `--workload-configuration=et/trace --comm-group-configuration=et/comm_group.json` of ASTRA-sim
"""


def export(
    trace: inputs.Trace,
    to: outputs.To,
    output: outputs.ExportOutput = None,
    force: outputs.Force = False,
    window: selection.Window = None,
    steps: selection.Steps = None,
    ranks: selection.ChosenRanks = None,
) -> None:
    """Export a run, or a part of it, to Perfetto, speedscope, CSV, Parquet or Chakra.

    perfetto: steps, modules, operators and calls of each rank, with flow arrows between matched
    calls, waits and bytes in flight. speedscope: blocked time and bytes by stack. csv and parquet:
    a folder with one file per table, and a file that documents the columns. chakra: a folder with
    an execution trace of each rank, whose nodes have their dependencies, for simulators.
    """
    path = output or default_path(trace, FORMATS[to.value].suffix)
    is_folder = FORMATS[to.value].is_folder
    if is_folder:
        _check_folder(path, force=force)
    else:
        check_output(path, force=force, read=[trace])
    chosen = selection_of(window, steps, ranks)
    frames = load_run(trace, needs_events=True)
    with working(f"writing {path}"):
        from commtrace.analyze import notices_of

        frames = part_of(frames, chosen)
        for notice in notices_of(frames):
            say(f"note: {notice.text}")
        for note in FORMATS[to.value].write(frames, path):
            say(f"note: {note}", always=True)
    finish(sorted(path.iterdir()) if is_folder else [path], then=["commtrace", "summary", trace])


def _check_folder(path: Path, *, force: bool) -> None:
    """Refuse a folder that is not empty, before any work is done."""
    if not path.is_dir():
        check_output(path, force=False)
    elif any(path.iterdir()) and not force:
        raise UsageError(
            f"cannot write into {path}",
            found="a folder that is not empty",
            why="existing files are only overwritten with --force",
            attempt="another -o, or --force to write its files there",
        )
