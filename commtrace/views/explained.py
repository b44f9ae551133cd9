"""Display of a call's story: its place, its reason, the candidates, and its payload."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from commtrace.analyze.run.program_folder import relative_to
from commtrace.analyze.story import Story
from commtrace.escaping import visible
from commtrace.units import counted, text_of_bytes, text_of_duration
from commtrace.views.html import html

_TEMPLATE = """
<div><b>{{ story.kind }}</b> <span class="about">call {{ story.id }} of rank {{ story.rank }}
</span></div>
<dl>
{% for name, text in lines %}
<dt>{{ name }}</dt><dd>{{ text }}</dd>
{% endfor %}
</dl>
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

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the known facts of the call, each as a name and a text."""
        story, why, where = self.story, self.story.why, self.story.where
        file = relative_to(self.folder, where.source_file)
        place = f"{file}:{where.source_line}" if file else ""
        yield "where", "  ".join(filter(None, [place, where.text.strip()]))
        yield "via", where.via
        yield "module", f"{where.module or '–'} ({where.phase})"
        yield "why", why.sentence
        yield "operator", why.op and f"{why.op} needs {why.argument or 'its argument'}"
        if why.source_spec:
            yield "from", _layout(why.source_spec, why.source_words)
            yield "to", _layout(why.target_spec, why.target_words)
        for candidate in why.candidates:
            chosen = ", chosen" if candidate.is_chosen else ""
            cost = text_of_duration(candidate.cost_s * 1e9)
            yield "considered", f"{candidate.axis}: {candidate.layouts}  {cost}{chosen}"
        yield "sent", self._sent()
        is_timed = story.time.blocked_ns >= 0
        yield "blocked", text_of_duration(story.time.blocked_ns) if is_timed else "not known"
        for finding in story.findings:
            yield "finding", f"{finding.title} {finding.advice}"

    def _sent(self) -> str:
        story = self.story
        axis = f" on axis {story.group.mesh_axis}" if story.group.mesh_axis else ""
        sent, payload = (
            text_of_bytes(size) if size >= 0 else "an unknown number of bytes"
            for size in (story.wire_bytes, story.payload_bytes)
        )
        of_type = f" of {story.dtype}" if story.dtype else ""
        ranks = story.group.ranks
        among = f"among {counted(len(ranks), 'rank')}" if ranks else "in a group of unknown ranks"
        return f"{sent} for {payload}{of_type}{axis} {among}"

    def _repr_html_(self) -> str:
        known = [(name, text) for name, text in self.lines() if text]
        return html(_TEMPLATE, story=self.story, lines=known)

    def __repr__(self) -> str:
        head = f"{self.story.kind}, call {self.story.id} of rank {self.story.rank}"
        lines = [head, *(f"  {name}: {text}" for name, text in self.lines() if text)]
        return "\n".join(map(visible, lines))


def _layout(spec: str, words: str) -> str:
    return f"{spec}  ({words})" if words else spec
