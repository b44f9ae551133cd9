"""`commtrace explain`: details of a communication call."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from commtrace.escaping import visible
from commtrace.schema import HARNESS
from commtrace.units import text_of_bytes, text_of_duration, text_of_ranks, text_of_value
from commtrace_cli.documents import write_document
from commtrace_cli.fitting import fitted, omissions
from commtrace_cli.loading import load_run, say_replayed
from commtrace_cli.options import inputs, printing, selection
from commtrace_cli.terminal import Text, data_console, finish

if TYPE_CHECKING:
    from commtrace.analyze import Frames
    from commtrace.analyze.story import Peer, Story

EXAMPLE = """
Examples:

- `commtrace explain run.json longest`
- `commtrace explain run.json 0:92` is call 92 of rank 0, from `commtrace table run.json calls`
- `commtrace explain run.json biggest --json`
"""

_REPORTED_IN_PLACE = ("operator", "layouts", "candidates", "source")
"""Unknown facts reported in their place; others are listed as notes at the end."""

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
    from commtrace.analyze.story import explain as story_of
    from commtrace.analyze.story import find_call

    say_replayed(frames)
    story = story_of(frames, find_call(frames, call))
    if as_json:
        write_document(frames.run, {"story": story})
        return
    _print(frames, story, rows)
    following = next((peer for peer in reversed(story.peers) if not peer.is_this), None)
    other = f"{following.rank}:{following.id}" if following else "longest"
    finish([], then=["commtrace", "explain", trace, other])


def _print(frames: Frames, story: Story, rows: int) -> None:
    console = data_console()
    console.print(_title(story))
    parts = (
        ("where", _where(frames, story)),
        ("why", _why(story)),
        ("choice", _candidates(story)),
        ("steps", _steps(story)),
        ("sent", _sent(story)),
        ("time", _time(story)),
        ("peers", _peers(story)),
    )
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=_MARGIN - 2, style="dim")
    grid.add_column(overflow="fold")
    for heading, lines in parts:
        for number, line in enumerate(lines):
            grid.add_row("" if number else heading, line)
    console.print(grid)
    if len(story.peers) > 1:
        console.print(_arrivals(story, rows, console.width))
    for each in story.findings:
        console.print()
        console.print(Text.assemble((each.rule, "bold yellow"), "  ", each.title))
        console.print(Text(each.advice, style="green"))
    notes = [text for part, text in story.unknown.items() if part not in _REPORTED_IN_PLACE]
    if notes:
        console.print()
    for text in notes:
        console.print(Text(f"note: {text}", style="yellow"))


def _title(story: Story) -> Text:
    axis = story.group.mesh_axis or story.group.description or f"group {story.group.name}"
    where = f"step {story.where.step}, " if story.where.step >= 0 else ""
    return Text.assemble(
        (f"{story.rank}:{story.id} {story.kind}", "bold"),
        f" on {axis}, {where}{story.where.phase or 'phase not known'}",
    )


def _where(frames: Frames, story: Story) -> Iterable[Text]:
    from commtrace.analyze.run.program_folder import relative

    where = story.where
    if where.source_file:
        inside = f" in {where.source_function}" if where.source_function else ""
        via = f", via {where.via}" if where.via else ""
        yield Text(f"{relative(frames, where.source_file)}:{where.source_line}{inside}{via}")
    else:
        yield Text(story.unknown["source"])
    yield from _source_lines(story)
    for line in where.stack[:-1]:
        yield Text(f"    {relative(frames, line)}", style="dim")
    called = f", call {where.module_call}" if where.module_call >= 0 else ""
    if where.module:
        yield Text(f"module {where.module} ({where.module_class}{called})")
    elif where.module_class:
        yield Text(f"the outermost module ({where.module_class}{called})")
    else:
        yield Text("outside of any module")
    if where.region:
        yield Text(f"region {where.region}")
    if where.stage >= 0:
        yield Text(
            f"pipeline stage {where.stage}, micro-batch {where.micro_batch}, {where.direction}"
        )
    if story.num_alike > 1:
        yield Text(f"one of {story.num_alike} such calls of rank {story.rank} at this line")


def _source_lines(story: Story) -> Iterable[Text]:
    """Return the numbered lines around the call, without their common indentation."""
    where = story.where
    indent = min((_indent(each.text) for each in where.lines if each.text.strip()), default=0)
    for each in where.lines:
        is_this = each.number == where.source_line
        text = f"{'>' if is_this else ' '} {each.number:>5}  {each.text[indent:]}".rstrip()
        yield Text(text, style="bold cyan" if is_this else "dim")


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _why(story: Story) -> Iterable[Text]:
    why = story.why
    if why.carries and why.carries != HARNESS:
        of = "" if why.carries == "parameters" else "of "
        of_parameters = f" {of}{_listed(why.parameters)}" if why.parameters else ""
        yield Text(f"it carries {why.carries}{of_parameters}")
    if not why.op:
        yield Text(story.unknown["operator"])
        return
    needs = f" needs its argument {why.argument} in another layout" if why.argument else ""
    if why.source_spec and why.source_spec == why.target_spec:
        needs = f" exchanges parts of its argument {why.argument}" if why.argument else ""
    yield Text.assemble((why.op, "bold"), needs)
    if why.note:
        yield Text(f"  {why.note}")
    outer = [each.op for each in why.operators if each.op != why.op]
    if outer:
        yield Text(f"  inside of {', '.join(outer)}")
    if why.source_spec and why.source_spec == why.target_spec:
        yield Text.assemble("  works on  ", why.source_spec)
        yield Text(f"            {why.source_words}", style="dim")
    elif why.source_spec:
        yield Text.assemble("  from  ", why.source_spec)
        if why.source_words:
            yield Text(f"        {why.source_words}", style="dim")
        yield Text.assemble("  to    ", why.target_spec)
        if why.target_words:
            yield Text(f"        {why.target_words}", style="dim")


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _candidates(story: Story) -> Iterable[Text]:
    if not story.why.candidates and story.why.op:
        yield Text(story.unknown.get("candidates") or story.unknown["layouts"], style="dim")
    for each in story.why.candidates:
        axis = f"on {each.axis}  " if each.axis else ""
        text = f"{axis}{each.layouts}  {text_of_duration(each.cost_s * 1e9)}"
        if each.is_chosen:
            yield Text.assemble(("> ", "green"), (text, "bold"), "  cheapest")
        else:
            yield Text(f"  {text}", style="dim")


def _steps(story: Story) -> Iterable[Text]:
    steps = story.why.steps
    if len(steps) < 2:
        return
    for number, step in enumerate(steps, 1):
        mark = ("> ", "green") if step.id == story.id else "  "
        size = text_of_bytes(step.payload_bytes) if step.payload_bytes >= 0 else "size not known"
        on_axis = f" on {step.axis}" if step.axis else ""
        text = f"{number}. {step.kind}{on_axis}, {size} ({story.rank}:{step.id})"
        yield Text.assemble(mark, (text, "bold" if step.id == story.id else "dim"))


def _sent(story: Story) -> Iterable[Text]:
    reduced = f", {story.reduce_op}" if story.reduce_op else ""
    is_async = ", asynchronous" if story.is_async else ""
    yield Text(f"{story.native_op or story.kind}{reduced}{is_async}")
    shapes = (story.input_shapes or "nothing", story.output_shapes or "nothing")
    if any((story.input_shapes, story.output_shapes)):
        yield Text(f"{story.dtype} {' -> '.join(shapes)}".strip())
    wire = "sent by this rank" if story.peer >= 0 else "sent by this rank in a ring"
    yield Text(f"{_bytes(story.payload_bytes)} payload, {_bytes(story.wire_bytes)} {wire}")
    if story.planned_bytes >= 0 and story.planned_bytes != story.payload_bytes:
        yield Text(f"{_bytes(story.planned_bytes)} were planned", style="yellow")
    number = f", collective {story.number} of the group" if story.number >= 0 else ""
    ranks = _ranks(story.group.ranks)
    ends = ""
    if story.root >= 0:
        ends = f", root {story.root}"
    if story.peer >= 0:
        ends = f", {'to' if story.kind == 'send' else 'from'} rank {story.peer}"
    yield Text(f"group {story.group.name} ({ranks}, {story.group.backend}){number}{ends}")


def _ranks(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return "members not known"
    text = text_of_ranks(ranks)
    return text if len(ranks) == 1 else f"{len(ranks)} ranks: {text.partition(' ')[2]}"


def _bytes(num_bytes: int) -> str:
    return "not known" if num_bytes < 0 else text_of_bytes(num_bytes)


def _time(story: Story) -> Iterable[Text]:
    time = story.time
    if time.after_start_ns >= 0:
        lasted = f", took {text_of_duration(time.lasted_ns)}" if time.lasted_ns >= 0 else ""
        yield Text(f"began {text_of_duration(time.after_start_ns)} into the run{lasted}")
    if time.device_ns >= 0:
        yield Text(f"a device ran it for {text_of_duration(time.device_ns)}")
    if time.blocked_ns >= 0:
        hidden = time.hidden_ns
        rest = f", {text_of_duration(hidden)} overlapped" if hidden > 0 else ""
        blocked = f"blocked rank {story.rank} for {text_of_duration(time.blocked_ns)}"
        yield Text.assemble((blocked, "bold"), rest)
    else:
        yield Text(f"it is not known for how long it blocked rank {story.rank}")
    if time.wait_ns > 0:
        for_whom = f" for rank {time.waited_for}" if time.waited_for != story.rank else ""
        yield Text(f"  {text_of_duration(time.wait_ns)} waiting{for_whom}", style="bold yellow")
    if time.wait_ns >= 0:
        yield Text(f"  {text_of_duration(time.transfer_ns)} transfer after the last arrival")
    if time.slack_ns == 0:
        yield Text("on the critical path: if it takes longer, so does the run", style="yellow")
    elif time.slack_ns > 0:
        yield Text(f"could take {text_of_duration(time.slack_ns)} longer before the run does")
    if not math.isnan(time.busbw_bytes_per_s):
        speeds = (text_of_bytes(time.algbw_bytes_per_s), text_of_bytes(time.busbw_bytes_per_s))
        yield Text(f"{speeds[0]}/s algbw, {speeds[1]}/s busbw")


def _peers(story: Story) -> Iterable[Text]:
    differing = [peer.rank for peer in story.peers if peer.differs]
    if story.missing_ranks:
        arrived = f"{len(story.peers)} of {len(story.peers) + len(story.missing_ranks)}"
        missing = text_of_ranks(story.missing_ranks)
        yield Text(f"{arrived} arrived; no call of {missing} is in the trace", style="bold red")
    if differing:
        made = f"{text_of_ranks(differing)} made a different call: `commtrace check`"
        yield Text(made, style="bold red")
    if len(story.peers) < 2:
        return
    last = story.peers[-1]
    if last.is_last:
        yield Text(
            f"rank {last.rank} arrived last, {text_of_duration(last.after_ns)} after the first"
        )
    elif last.after_ns == 0:
        yield Text("all arrived at once")
    if story.lateness is not None:
        yield Text(story.lateness.sentence())


_OF_PEERS = ("arrived", "blocked", "waited", "transfer")


def _arrivals(story: Story, rows: int, width: int) -> Padding:
    """Return a table of each peer's arrival, waiting and transfer time."""
    shown = _few(story.peers, rows)
    columns: dict[str, list[str]] = {name: [] for name in ("call", *_OF_PEERS, "remark")}
    for peer in shown:
        cells = (peer.after_ns, peer.blocked_ns, peer.wait_ns, peer.transfer_ns)
        texts = [text_of_value(value if value >= 0 else math.nan, "ns") for value in cells]
        texts[0] = texts[0] if peer.after_ns < 0 else f"+{texts[0]}"
        remarks = [("this call", peer.is_this), ("last", peer.is_last), (peer.differs, True)]
        remark = ", ".join(text for text, holds in remarks if text and holds)
        for name, text in zip(
            columns, (f"{peer.rank}:{peer.id}", *texts, visible(remark)), strict=True
        ):
            columns[name].append(text)
    margin = _MARGIN if width >= _WIDE else 0
    drawn = fitted(
        {name: name for name in columns} | {"remark": ""},
        columns,
        width=width - margin,
        numbers=_OF_PEERS,
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


def _few(peers: tuple[Peer, ...], rows: int) -> list[Peer]:
    """Select at most `rows` peers: this and differing peers, then the last, then the first."""
    if len(peers) <= rows:
        return list(peers)
    places = [i for i, peer in enumerate(peers) if peer.is_this or peer.differs]
    places += [*reversed(range(len(peers) - rows // 2, len(peers))), *range(len(peers))]
    return [peers[i] for i in sorted(list(dict.fromkeys(places))[:rows])]
