"""`commtrace flame`: origin of communication, in the terminal or as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace_cli.fitting import omissions
from commtrace_cli.loading import is_silent, load_run
from commtrace_cli.options import inputs, outputs, selection
from commtrace_cli.selecting import part_of, selection_of
from commtrace_cli.terminal import Text, check_output, data_console, finish, working

if TYPE_CHECKING:
    from commtrace.analyze import Frames

EXAMPLE = """
Examples:

- `commtrace flame run.json`
- `commtrace flame run.json --by exposed --phase backward`
- `commtrace flame run.json --by count -o flame.html`
"""

VALUE_OF = {
    selection.Width.WIRE_BYTES: "wire_bytes",
    selection.Width.TIME: "time_ns",
    selection.Width.EXPOSED: "blocked_ns",
    selection.Width.COUNT: "num_calls",
}


def flame(
    trace: inputs.Trace,
    by: selection.FlameWidth = selection.Width.WIRE_BYTES,
    phase: selection.Phase = "",
    window: selection.Window = None,
    steps: selection.Steps = None,
    rows: selection.Rows = 40,
    output: outputs.PictureOutput = None,
    force: outputs.Force = False,
) -> None:
    """Show the origin of communication as a flame graph: phase, module, operator, collective.

    In the terminal, each bar is below its parent's; numbers are means per rank. `-o` writes
    an interactive picture.
    """
    if output is not None:
        from commtrace.report.picture import check_format

        check_format(output)
        check_output(output, force=force, read=[trace])
    chosen = selection_of(window, steps)
    frames = load_run(trace)
    if output is None and is_silent(frames, trace):
        return
    frames = part_of(frames, chosen)
    value = VALUE_OF[by]
    if output is None:
        _print(frames, value, phase, rows)
        command = ["commtrace", "flame", trace, "--by", by.value, "-o", "flame.html"]
        finish([], then=command)
        return
    from commtrace.report.picture import write_flame

    with working(f"drawing {output}"):
        write_flame(frames, output, value=value, phase=phase)
    finish([output], then=["commtrace", "report", trace])


def _print(frames: Frames, value: str, phase: str, rows: int) -> None:
    from commtrace.analyze import notices_of
    from commtrace.figures.flame import VALUES, flame_nodes, level_of, nothing_to_draw, value_note
    from commtrace_cli.text_flame import Tree, flame_lines, largest, num_truncated

    console = data_console()
    nodes = flame_nodes(frames)
    top = level_of(nodes, phase)
    console.print(Text(str(frames.run.get("command") or frames.path or ""), style="bold"))
    of_phase = f" in {phase}" if phase else ""
    caption = f"{VALUES[value]}{of_phase}: per rank, as the mean over ranks"
    console.print(Text(caption, style="dim"))
    for notice in notices_of(frames, "flame"):
        console.print(Text(f"note: {notice.text}", style="yellow"))
    if lacking := nothing_to_draw(nodes, value, top):
        console.print(Text(f"{lacking}."))
        return
    if note := value_note(nodes.iloc[top], value):
        console.print(Text(f"note: The {VALUES[value].lower()} is {note}.", style="yellow"))
    console.print()
    all_rows = list(Tree(nodes, value).rows(top))
    shown = largest(all_rows, rows)
    for line in flame_lines(shown, value, max(frames.num_ranks, 1), console.width):
        console.print(line, no_wrap=True, crop=True, highlight=False)
    if len(shown) < len(all_rows):
        hidden = len(all_rows) - len(shown)
        console.print(Text(f"{hidden} smaller rows: --rows {len(all_rows)}", style="dim"))
    if text := omissions([], num_truncated(shown, console.width), "with -o FILE", noun="name"):
        console.print(Text(text, style="dim"))
