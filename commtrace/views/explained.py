"""A call's story in lines, for the terminal and notebooks: its place, reason, data and peers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from commtrace.analyze.run.program_folder import relative_to
from commtrace.analyze.story import Peer, Story
from commtrace.escaping import visible
from commtrace.schema import HARNESS
from commtrace.units import text_of_bytes, text_of_duration, text_of_ranks, text_of_value
from commtrace.views.html import html
from commtrace.views.lines import StyledLine, StyledText, line, markup, text_of

_REPORTED_IN_PLACE = ("operator", "layouts", "candidates", "source")
"""Unknown facts reported in their place; others are listed as notes at the end."""

NUMBERS = ("arrived", "blocked", "waited", "transfer")
MOST_PEERS = 12
_MARGIN = 9  # the width of the longest heading, plus a gap

_TEMPLATE = """
{{ title }}
<dl>
{% for heading, lines in parts %}
<dt>{{ heading }}</dt><dd>{{ lines }}</dd>
{% endfor %}
</dl>
{% if peers %}
<table><tr>{% for name in peers %}<th{% if name in numbers %} class="number"{% endif %}>
{{- name }}</th>{% endfor %}</tr>
{% for row in rows %}
<tr>{% for name in peers %}<td{% if name in numbers %} class="number"{% endif %}>
{{- row[name] }}</td>{% endfor %}</tr>
{% endfor %}
</table>
{% if num_more %}<div class="note">{{ num_more }} more ranks</div>{% endif %}
{% endif %}
{% for lines in findings %}
<div class="finding">{{ lines }}</div>
{% endfor %}
{{ notes }}
"""


@dataclass(frozen=True, slots=True)
class Explained:
    """A story that displays itself; `story` has all values.

    Attributes:
        story: The values.
        folder: Folder of the program, to which its files are named relative.
    """

    story: Story
    folder: str = ""

    @property
    def title(self) -> StyledLine:
        """The call, its axis, step and phase."""
        story = self.story
        axis = story.group.mesh_axis or story.group.description or f"group {story.group.name}"
        where = f"step {story.where.step}, " if story.where.step >= 0 else ""
        return (
            StyledText(f"{story.rank}:{story.id} {story.kind}", "strong"),
            StyledText(f" on {axis}, {where}{story.where.phase or 'phase not known'}"),
        )

    def parts(self) -> Iterator[tuple[str, list[StyledLine]]]:
        """Yield the parts that have anything, each a heading and its lines."""
        story = self.story
        for heading, lines in (
            ("where", _where(story, self.folder)),
            ("why", _why(story)),
            ("choice", _candidates(story)),
            ("steps", _steps(story)),
            ("sent", _sent(story)),
            ("time", _time(story)),
            ("peers", _peers(story)),
        ):
            if found := list(lines):
                yield heading, found

    def findings(self) -> list[list[StyledLine]]:
        """Return the findings that the call is part of, with advice."""
        return [
            [
                (StyledText(each.rule, "serious"), StyledText(f"  {each.title}")),
                line(each.advice, "advice"),
            ]
            for each in self.story.findings
        ]

    def notes(self) -> list[StyledLine]:
        """Return what is unknown about the call and not reported in its place."""
        unknown = self.story.unknown
        texts = [text for part, text in unknown.items() if part not in _REPORTED_IN_PLACE]
        return [line(f"note: {text}", "warning") for text in texts]

    def _repr_html_(self) -> str:
        story = self.story
        shown = few_peers(story.peers, MOST_PEERS) if len(story.peers) > 1 else []
        columns = arrivals(shown)
        return html(
            _TEMPLATE,
            title=markup([self.title]),
            parts=[(heading, markup(lines)) for heading, lines in self.parts()],
            peers=list(columns) if shown else [],
            rows=[
                dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ],
            numbers=NUMBERS,
            num_more=len(story.peers) - len(shown) if shown else 0,
            findings=[markup(lines) for lines in self.findings()],
            notes=markup(self.notes()),
        )

    def __repr__(self) -> str:
        texts = [text_of(self.title)]
        for heading, lines in self.parts():
            for number, each in enumerate(lines):
                texts.append(f"{'' if number else heading:{_MARGIN}}{text_of(each)}".rstrip())
        if len(self.story.peers) > 1:
            texts += self._table()
        for each in (*self.findings(), self.notes()):
            texts += ["", *map(text_of, each)] if each else []
        return "\n".join(texts)

    def _table(self) -> list[str]:
        """Return the arrivals of peers in columns."""
        columns = arrivals(few_peers(self.story.peers, MOST_PEERS))
        cells = {
            name: ["" if name == "remark" else name, *texts] for name, texts in columns.items()
        }
        widths = {name: max(map(len, texts)) for name, texts in cells.items()}
        return [
            (" " * _MARGIN + "  ".join(
                text.rjust(widths[name]) if name in NUMBERS else text.ljust(widths[name])
                for name, text in zip(cells, row, strict=True)
            )).rstrip()
            for row in zip(*cells.values(), strict=True)
        ]  # fmt: skip


def arrivals(peers: list[Peer]) -> dict[str, list[str]]:
    """Return the arrival, waiting and transfer time of peers as texts, by column."""
    columns: dict[str, list[str]] = {name: [] for name in ("call", *NUMBERS, "remark")}
    for peer in peers:
        cells = (peer.after_ns, peer.blocked_ns, peer.wait_ns, peer.transfer_ns)
        texts = [text_of_value(value if value >= 0 else math.nan, "ns") for value in cells]
        texts[0] = texts[0] if peer.after_ns < 0 else f"+{texts[0]}"
        remarks = [("this call", peer.is_this), ("last", peer.is_last), (peer.differs, True)]
        remark = ", ".join(text for text, holds in remarks if text and holds)
        row = (f"{peer.rank}:{peer.id}", *texts, visible(remark))
        for name, text in zip(columns, row, strict=True):
            columns[name].append(text)
    return columns


def few_peers(peers: tuple[Peer, ...], rows: int) -> list[Peer]:
    """Select at most `rows` peers: this and differing peers, then the last, then the first."""
    if len(peers) <= rows:
        return list(peers)
    places = [i for i, peer in enumerate(peers) if peer.is_this or peer.differs]
    places += [*reversed(range(len(peers) - rows // 2, len(peers))), *range(len(peers))]
    return [peers[i] for i in sorted(list(dict.fromkeys(places))[:rows])]


def _where(story: Story, folder: str) -> Iterator[StyledLine]:
    where = story.where
    if where.source_file:
        inside = f" in {where.source_function}" if where.source_function else ""
        via = f", via {where.via}" if where.via else ""
        yield line(f"{relative_to(folder, where.source_file)}:{where.source_line}{inside}{via}")
    else:
        yield line(story.unknown["source"])
    yield from _source_lines(story)
    for each in where.stack[:-1]:
        yield line(f"    {relative_to(folder, each)}", "faint")
    called = f", call {where.module_call}" if where.module_call >= 0 else ""
    if where.module:
        yield line(f"module {where.module} ({where.module_class}{called})")
    elif where.module_class:
        yield line(f"the outermost module ({where.module_class}{called})")
    else:
        yield line("outside of any module")
    if where.region:
        yield line(f"region {where.region}")
    if where.stage >= 0:
        yield line(
            f"pipeline stage {where.stage}, micro-batch {where.micro_batch}, {where.direction}"
        )
    if story.num_alike > 1:
        yield line(f"one of {story.num_alike} such calls of rank {story.rank} at this line")


def _source_lines(story: Story) -> Iterator[StyledLine]:
    """Yield the numbered lines around the call, without their common indentation."""
    where = story.where
    indent = min((_indent(each.text) for each in where.lines if each.text.strip()), default=0)
    for each in where.lines:
        is_this = each.number == where.source_line
        text = f"{'>' if is_this else ' '} {each.number:>5}  {each.text[indent:]}".rstrip()
        yield line(text, "here" if is_this else "faint")


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _why(story: Story) -> Iterator[StyledLine]:
    why = story.why
    if why.carries and why.carries != HARNESS:
        of = "" if why.carries == "parameters" else "of "
        of_parameters = f" {of}{_listed(why.parameters)}" if why.parameters else ""
        yield line(f"it carries {why.carries}{of_parameters}")
    if not why.op:
        yield line(story.unknown["operator"])
        return
    needs = f" needs its argument {why.argument} in another layout" if why.argument else ""
    if why.source_spec and why.source_spec == why.target_spec:
        needs = f" exchanges parts of its argument {why.argument}" if why.argument else ""
    yield (StyledText(why.op, "strong"), StyledText(needs))
    if why.note:
        yield line(f"  {why.note}")
    outer = [each.op for each in why.operators if each.op != why.op]
    if outer:
        yield line(f"  inside of {', '.join(outer)}")
    if why.source_spec and why.source_spec == why.target_spec:
        yield line(f"  works on  {why.source_spec}")
        yield line(f"            {why.source_words}", "faint")
    elif why.source_spec:
        yield line(f"  from  {why.source_spec}")
        if why.source_words:
            yield line(f"        {why.source_words}", "faint")
        yield line(f"  to    {why.target_spec}")
        if why.target_words:
            yield line(f"        {why.target_words}", "faint")


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _candidates(story: Story) -> Iterator[StyledLine]:
    if not story.why.candidates and story.why.op:
        yield line(story.unknown.get("candidates") or story.unknown["layouts"], "faint")
    for each in story.why.candidates:
        axis = f"on {each.axis}  " if each.axis else ""
        text = f"{axis}{each.layouts}  {text_of_duration(each.cost_s * 1e9)}"
        if each.is_chosen:
            yield (StyledText("> ", "chosen"), StyledText(text, "strong"), StyledText("  cheapest"))
        else:
            yield line(f"  {text}", "faint")


def _steps(story: Story) -> Iterator[StyledLine]:
    steps = story.why.steps
    if len(steps) < 2:
        return
    for number, step in enumerate(steps, 1):
        is_this = step.id == story.id
        size = text_of_bytes(step.payload_bytes) if step.payload_bytes >= 0 else "size not known"
        on_axis = f" on {step.axis}" if step.axis else ""
        text = f"{number}. {step.kind}{on_axis}, {size} ({story.rank}:{step.id})"
        mark = StyledText("> ", "chosen") if is_this else StyledText("  ")
        yield (mark, StyledText(text, "strong" if is_this else "faint"))


def _sent(story: Story) -> Iterator[StyledLine]:
    reduced = f", {story.reduce_op}" if story.reduce_op else ""
    is_async = ", asynchronous" if story.is_async else ""
    yield line(f"{story.native_op or story.kind}{reduced}{is_async}")
    shapes = (story.input_shapes or "nothing", story.output_shapes or "nothing")
    if any((story.input_shapes, story.output_shapes)):
        yield line(f"{story.dtype} {' -> '.join(shapes)}".strip())
    wire = "sent by this rank" if story.peer >= 0 else "sent by this rank in a ring"
    yield line(f"{_bytes(story.payload_bytes)} payload, {_bytes(story.wire_bytes)} {wire}")
    if story.planned_bytes >= 0 and story.planned_bytes != story.payload_bytes:
        yield line(f"{_bytes(story.planned_bytes)} were planned", "warning")
    number = f", collective {story.number} of the group" if story.number >= 0 else ""
    ends = ""
    if story.root >= 0:
        ends = f", root {story.root}"
    if story.peer >= 0:
        ends = f", {'to' if story.kind == 'send' else 'from'} rank {story.peer}"
    group = story.group
    yield line(f"group {group.name} ({_ranks(group.ranks)}, {group.backend}){number}{ends}")


def _ranks(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return "members not known"
    text = text_of_ranks(ranks)
    return text if len(ranks) == 1 else f"{len(ranks)} ranks: {text.partition(' ')[2]}"


def _bytes(num_bytes: int) -> str:
    return "not known" if num_bytes < 0 else text_of_bytes(num_bytes)


def _time(story: Story) -> Iterator[StyledLine]:
    time = story.time
    if time.after_start_ns >= 0:
        lasted = f", took {text_of_duration(time.lasted_ns)}" if time.lasted_ns >= 0 else ""
        yield line(f"began {text_of_duration(time.after_start_ns)} into the run{lasted}")
    if time.device_ns >= 0:
        yield line(f"a device ran it for {text_of_duration(time.device_ns)}")
    if time.blocked_ns >= 0:
        hidden = time.hidden_ns
        rest = f", {text_of_duration(hidden)} overlapped" if hidden > 0 else ""
        blocked = f"blocked rank {story.rank} for {text_of_duration(time.blocked_ns)}"
        yield (StyledText(blocked, "strong"), StyledText(rest))
    else:
        yield line(f"it is not known for how long it blocked rank {story.rank}")
    if time.wait_ns > 0:
        for_whom = f" for rank {time.waited_for}" if time.waited_for != story.rank else ""
        yield line(f"  {text_of_duration(time.wait_ns)} waiting{for_whom}", "serious")
    if time.wait_ns >= 0:
        yield line(f"  {text_of_duration(time.transfer_ns)} transfer after the last arrival")
    if time.slack_ns == 0:
        yield line("on the critical path: if it takes longer, so does the run", "warning")
    elif time.slack_ns > 0:
        yield line(f"could take {text_of_duration(time.slack_ns)} longer before the run does")
    if not math.isnan(time.busbw_bytes_per_s):
        speeds = (text_of_bytes(time.algbw_bytes_per_s), text_of_bytes(time.busbw_bytes_per_s))
        yield line(f"{speeds[0]}/s algbw, {speeds[1]}/s busbw")


def _peers(story: Story) -> Iterator[StyledLine]:
    differing = [peer.rank for peer in story.peers if peer.differs]
    if story.missing_ranks:
        arrived = f"{len(story.peers)} of {len(story.peers) + len(story.missing_ranks)}"
        missing = text_of_ranks(story.missing_ranks)
        yield line(f"{arrived} arrived; no call of {missing} is in the trace", "bad")
    if differing:
        yield line(f"{text_of_ranks(differing)} made a different call: `commtrace check`", "bad")
    if len(story.peers) < 2:
        return
    last = story.peers[-1]
    if last.is_last:
        yield line(
            f"rank {last.rank} arrived last, {text_of_duration(last.after_ns)} after the first"
        )
    elif last.after_ns == 0:
        yield line("all arrived at once")
    if story.lateness is not None:
        yield line(story.lateness.sentence())
