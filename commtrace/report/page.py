"""Report of a run: an HTML file with its findings, tables, calls and figures."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commtrace.analyze import CATALOG, Frames, Notice, load, notices_of
from commtrace.analyze.devices.gpu_time import summary
from commtrace.analyze.excerpts.time_window import part_in_time
from commtrace.analyze.findings import evaluated_note
from commtrace.analyze.measures.census import census
from commtrace.analyze.measures.steady_steps import left_out_text
from commtrace.analyze.notices import notices_on, replayed_note
from commtrace.analyze.pipelines.stages import idle_summary
from commtrace.analyze.run.program_folder import name_of
from commtrace.atomic_write import atomic_write
from commtrace.figures import PICTURES, Picture
from commtrace.figures.flame import NUM_UNKNOWN, VALUES, block_names, flame, flame_nodes, value_note
from commtrace.figures.kernel_bars import WORDS as SORTS_OF_WORK
from commtrace.figures.theme import DARK, LIGHT, recolouring
from commtrace.report import words
from commtrace.report.answers import Answers
from commtrace.report.call_facts import call_facts
from commtrace.report.call_store import CallStore, call_store
from commtrace.report.cards import consistency_summary, finding_cards, unevaluated_rules
from commtrace.report.changes import help_of
from commtrace.report.detail import shown_text
from commtrace.report.offline import offline_page
from commtrace.report.style import style_sheet
from commtrace.report.tables import tables
from commtrace.report.tiles import answer_tiles, extent, size_tiles
from commtrace.report.time_windows import timeline_data
from commtrace.schema import PHASES
from commtrace.selection import WHOLE_RUN, Selection
from commtrace.tracefile import Trace
from commtrace.units import text_of_duration

_SCRIPTS = (
    "format figures address keys download themes table calls tables filter meeting story detail "
    "flame blocks overview spans lanes steps traces timeline path steering cards fields page"
)
SCRIPTS = tuple(f"{name}.js" for name in _SCRIPTS.split())


def write_report(
    source: Path | str | Trace | Frames,
    path: Path | str,
    selection: Selection = WHOLE_RUN,
) -> Path:
    """Write the page of a run to `path` atomically, and return the path.

    Args:
        source: A run, a trace, or its path.
        path: File to write.
        selection: Part of the run. Tables and sums cover all ranks.

    Raises:
        TraceError: `source` is a path that holds no trace.
        UsageError: The run has no such part, or a link has no such speed.
    """
    path = Path(path)
    text = render_page(load(source), selection)
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="\n")
    return path


def render_page(run: Frames, selection: Selection = WHOLE_RUN) -> str:
    """Return the page of a run, or of a part of it, as HTML."""
    run = run.with_link(selection.link)
    frames = part_in_time(run, selection)
    answers = Answers(frames, run, selection.ranks)
    in_tables = [name for name, each in CATALOG.items() if each.topic and name != "calls"]
    answers.compute([*in_tables, *BESIDE_TABLES])
    all_notices = notices_of(frames)
    found = consistency_summary(answers)
    helps, replayed = help_of(answers, selection), replayed_note(frames)
    detail = answers.detail
    store = call_store(detail.frames, detail.overview, is_whole=detail.is_whole)
    data = page_data(answers, store, all_notices)
    return offline_page(
        "page.html",
        style=style_sheet(),
        scripts=SCRIPTS,
        data=data,
        calls=store.packed(),
        title=name_of(frames),
        run=frames.run,
        extent=extent(answers),
        answer_tiles=answer_tiles(answers, found, helps.tile),
        size_tiles=size_tiles(answers),
        helps=helps,
        replayed=replayed,
        findings=finding_cards(answers),
        num_findings=len(answers.findings),
        left_out=left_out_text(answers.frames),
        unevaluated_rules=unevaluated_rules(answers),
        evaluated_note=evaluated_note(frames),
        consistency_summary=found,
        notices=[
            notice.text for notice in all_notices if not notice.is_minor and notice.text != replayed
        ],
        facts=answers["facts"].to_dict("records"),
        kinds=_kinds(answers),
        values=VALUES,
        patterns=_in_columns(
            {name: each for name, each in data["patterns"].items() if name not in WIDE}
        ),
        wide=[made(answers) for name, made in WIDE.items() if name in data["patterns"]],
        words=words.PICTURES | {"waits": words.of_waits(answers["rank_waits"]["state"])},
        detail=words.DETAILS.get(frames.run.get("detail", ""), ""),
        phases=_in_order(set(census(frames).phases)),
        drawn_phases=_in_order(set().union(*frames.by_ranks(_phases_of_operators))),
        drawn_work=[
            (sort, words)
            for sort, words in SORTS_OF_WORK.items()
            if {"name": sort, "is_sent": False} in data["timeline"]["kernels"]["sorts"]
        ],
        num_merged=data["timeline"]["kernels"]["num_merged"],
        num_phases_left_out=data["timeline"]["num_phases_left_out"],
        resolution=text_of_duration(store.head["resolution_ns"]),
        is_rounded=store.head["resolution_ns"] > 1,
        has_calls=frames.num_calls > 0,
        has_untimed=census(frames).known["blocked_ns"] < frames.num_calls,
        shown=shown_text(frames, detail),
        has_waits=not any("wait" in text for text in notices_on("timeline", all_notices)),
    )


BESIDE_TABLES = ("findings", "consistency", "divergences", "facts")
"""Analyses that the page shows in sections of their own."""
PATTERNS = ("steps", "waits", "overlap_lost", "sizes", "bandwidth", "matrix")
"""Pictures arranged in columns, each drawn from a table."""
OF_EXPERTS = ("splits", "expert_load")
"""Further pictures of that sort, of runs with all-to-alls whose splits are known."""
OF_DEVICES = "gpu_time"
"""Picture for runs with kernels."""
OF_PIPELINES = "pipeline_schedule"
"""Picture for runs with pipeline stages."""


@dataclass(frozen=True, slots=True)
class WidePicture:
    """A picture in a section of its own.

    Attributes:
        picture: The picture.
        word: Text of the link to the section.
        sentence: What the picture shows, with numbers.
        note: How to read it.
    """

    picture: Picture
    word: str
    sentence: str
    note: str


def _of_devices(answers: Answers) -> WidePicture:
    return WidePicture(
        PICTURES[OF_DEVICES],
        "Devices",
        summary(answers[OF_DEVICES]),
        "Of each device as a whole: what computes comes before exposed communication, copies and "
        "idle time, so that the parts add up. The table of the same name has its streams.",
    )


def _of_pipelines(answers: Answers) -> WidePicture:
    return WidePicture(
        PICTURES[OF_PIPELINES],
        "Pipeline",
        idle_summary(answers["pipeline_stages"]),
        "Shown is the round of median length in the first pipeline; numbers are micro-batches. "
        "Table bubbles has the causes of all idle intervals, and pipeline_stages their sums and a "
        "better split of layers.",
    )


WIDE: dict[str, Callable[[Answers], WidePicture]] = {
    OF_DEVICES: _of_devices,
    OF_PIPELINES: _of_pipelines,
}
"""Pictures in sections of their own, for runs that have the data."""

HEAD_PIXELS = 100
"""Height of a picture's title and of the gap below it."""


def page_data(answers: Answers, store: CallStore, all_notices: list[Notice]) -> dict[str, Any]:
    """Return the data of the page's script: tables, figures in light colours, and a recolouring."""
    frames = answers.frames
    nodes = flame_nodes(frames)
    made = tables(answers, store)
    return {
        "tables": [table | {"notices": notices_on(table["name"], all_notices)} for table in made],
        "flame": flame(frames).to_plotly_json(),
        "flame_values": {value: nodes[value].tolist() for value in VALUES},
        "flame_notes": {
            value: [value_note(node, value) for node in nodes.to_dict("records")]
            for value in NUM_UNKNOWN
            if len(nodes) and value_note(nodes.iloc[0], value)
        },
        "flame_names": block_names(nodes),
        "fingerprint": fingerprint(frames, store),
        "patterns": {
            name: _pattern(answers, name, all_notices)
            for name in (*PATTERNS, *OF_EXPERTS, *WIDE)
            if _is_drawn(answers, name)
        },
        "call_facts": call_facts(answers, store.sites),
        "timeline": timeline_data(frames, answers.detail, frames.start_ns - answers.whole.start_ns),
        "dark": recolouring(LIGHT, DARK),
        "known": {"kinds": list(LIGHT.kinds), "phases": list(LIGHT.phases)},
    }


def fingerprint(frames: Frames, store: CallStore) -> str:
    """Return a short hash of a run, or of a part of it, that the page's addresses carry."""
    facts = [frames.run.get(name) for name in ("command", "created", "part")]
    about = json.dumps([facts, store.head["num_rows"]], default=str).encode()
    return hashlib.sha256(about + store.body).hexdigest()[:8]


def _is_drawn(answers: Answers, name: str) -> bool:
    if name == OF_DEVICES:
        return census(answers.frames).num_kernels > 0
    return name in PATTERNS or len(answers[PICTURES[name].analysis]) > 0


def _pattern(answers: Answers, name: str, all_notices: list[Notice]) -> dict[str, Any]:
    picture = PICTURES[name]
    limits = notices_on(picture.analysis, all_notices)
    drawn = picture.function(answers[picture.analysis], because=limits[0] if limits else "")
    return drawn.to_plotly_json()


def _in_columns(figures: dict[str, Any]) -> list[list[tuple[Picture, str]]]:
    """Arrange the patterns in two columns whose heights differ least, each in their order.

    Returns:
        The pictures of each column, with the data that each lacks if it is empty.
    """
    heights = [figure["layout"]["height"] + HEAD_PIXELS for figure in figures.values()]
    # The first is on top of the first column.
    ways = [(0, *way) for way in itertools.product((0, 1), repeat=max(len(heights) - 1, 0))]
    total = sum(heights)
    best = min(
        ways,
        key=lambda way: abs(
            total - 2 * sum(h for h, column in zip(heights, way, strict=False) if column)
        ),
    )
    columns: list[list[tuple[Picture, str]]] = [[], []]
    for (name, figure), column in zip(figures.items(), best, strict=False):
        lacking = figure["layout"].get("meta", {}).get("lacking", "")
        columns[column].append((PICTURES[name], lacking))
    return columns


def _kinds(answers: Answers) -> list[tuple[str, str]]:
    """Return the kinds of a run, the longest blocking first, each with the name of its colour."""
    kinds = answers["by_kind"]["kind"]
    return [(kind, kind if kind in LIGHT.kinds else "other") for kind in kinds]


def _in_order(present: set[str]) -> list[str]:
    """Return the known phases that are present, in the order of a step."""
    return [phase for phase in PHASES if phase in present]


def _phases_of_operators(part: Frames) -> set[str]:
    return {str(phase) for phase in part.ops["phase"].unique()}
