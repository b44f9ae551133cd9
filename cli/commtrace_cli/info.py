"""`commtrace info`: summary of a trace file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table

from commtrace.schema import FAKE, FORMAT_VERSION
from commtrace.settings import EVERY_LINK, THRESHOLDS, Settings, settings_of
from commtrace.tracefile import REPLAYED
from commtrace.units import (
    known_note,
    ordinal,
    runs_of,
    text_of_bytes,
    text_of_duration,
    text_of_value,
)
from commtrace_cli.documents import write_document
from commtrace_cli.growing import read_run
from commtrace_cli.options import inputs, printing
from commtrace_cli.terminal import Text, data_console, finish, working

if TYPE_CHECKING:
    from commtrace.tracefile import RunInfo

EXAMPLE = """
Examples:

- `commtrace info run.json`
- `commtrace info run.json --json | jq .info.missing_ranks`
"""


def info(trace: inputs.Trace, as_json: printing.AsJson = False) -> None:
    """Summarize a trace: its program, ranks, hosts, size, and missing parts.

    Works for every readable trace, even without communication.
    """
    settings = settings_of()
    with working(f"reading {trace}"):
        from commtrace.tracefile import run_info

        read = read_run(trace)
        facts = run_info(read)
    if as_json:
        write_document(read.run, {"info": facts, "settings": settings})
        return
    console = data_console()
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for heading, line in (*_lines(facts), *_lines_of_settings(settings)):
        grid.add_row(heading, line)
    console.print(grid)
    finish([], then=["commtrace", "summary", trace])


def _lines(info: RunInfo) -> Iterator[tuple[str, Text]]:
    size = f", {text_of_bytes(info.num_bytes)}" if info.num_bytes >= 0 else ""
    yield "trace", Text(f"{info.path}{size}")
    yield (
        "format",
        Text(f"version {info.format_version}, latest supported version {FORMAT_VERSION}"),
    )
    if REPLAYED in info.others:
        yield "", Text(f"replayed, not recorded: with {info.others[REPLAYED]}", style="yellow")
    yield "program", Text(info.command or "not known")
    yield "recorded", Text(_when(info))
    software = (("torch", info.torch), ("python", info.python))
    known = [f"{name} {version}" for name, version in software if version]
    yield "with", Text(", ".join(known) or "not known")
    yield "ranks", _ranks(info)
    for number, host in enumerate(info.hosts):
        devices = f", on {', '.join(host.devices)}" if host.devices else ""
        name = host.host or "host not known"
        yield "" if number else "hosts", Text(f"{name}: {_listed(host.ranks)}{devices}")
    yield "clocks", Text(info.clock or "not known")
    axes = f", of mesh axes {', '.join(info.mesh_axes)}" if info.mesh_axes else ""
    backends = f", with {', '.join(info.backends)}" if info.backends else ""
    yield "groups", Text(f"{info.num_rows['groups']:,}{axes}{backends}")
    yield "steps", Text(_steps(info))
    yield "calls", _row_count(info.num_rows["comm"], info.num_dropped)
    if lacks := _unknown(info):
        yield "", lacks
    yield "operators", _row_count(info.num_rows["ops"], info.num_ops_dropped)
    for name, value in info.others.items():
        if name == REPLAYED:
            continue
        text = "; ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield name.replace("_", " "), Text(text)


_ENDS = {
    "marked": "marked by the program",
    "optimizer": "detected by the optimizer's step()",
    "profiler": "detected by step() of torch.profiler",
    "scheduler": "detected by the LR scheduler's step()",
    "recording": "the entire recording",
}


def _steps(info: RunInfo) -> str:
    if not info.num_steps:
        return "none marked or detected"
    sampled = f"every {ordinal(info.every)} of the program" if info.every > 1 else ""
    parts = (f"{info.num_steps:,}", sampled, _ENDS.get(info.steps_from, ""))
    return ", ".join(filter(None, parts))


def _lines_of_settings(settings: Settings) -> Iterator[tuple[str, Text]]:
    """Yield the settings of pyproject.toml that apply in this folder, if any."""
    if settings.path is not None:
        yield "settings", Text(str(settings.path))
    if settings.detail:
        yield "", Text(f"detail {settings.detail}")
    for heading in ("libraries", "own_packages"):
        names = getattr(settings, heading)
        if names:
            yield "", Text(f"{heading.replace('_', ' ')} {', '.join(names)}")
    for name, value in settings.thresholds.items():
        yield "", Text(f"threshold {name} {value:g}, by default {THRESHOLDS[name].default:g}")
    for pattern, kind in settings.kernels.items():
        yield "", Text(f"kernels named {pattern} are {kind}")
    for name, speed in settings.link.items():
        of_groups = "" if name == EVERY_LINK else f" of {name}"
        yield "", Text(f"link{of_groups} {text_of_value(speed, 'bytes/s')}")
    for each in settings.muted:
        places = {"module": each.module, "source": each.source}
        where = "".join(f", {name} {text}" for name, text in places.items() if text != "*")
        yield "", Text(f"muted {each.rule}{where}: {each.reason}")


def _when(info: RunInfo) -> str:
    duration = text_of_duration(info.duration_ns) if info.duration_ns >= 0 else ""
    detail = f"detail {info.detail}" if info.detail else ""
    return ", ".join(filter(None, (info.created, duration, detail))) or "not known"


def _ranks(info: RunInfo) -> Text:
    parts: list[tuple[str, str]] = [(f"{len(info.recorded_ranks)} of {info.world_size}", "")]
    if info.others.get("process_group") == FAKE:
        parts.append((", the only rank of a fake world", ""))
    if info.missing_ranks:
        parts.append((f", no recording of {_listed(info.missing_ranks)}", "bold red"))
    if info.torn_ranks:
        parts.append((f", not closed by {_listed(info.torn_ranks)}", "yellow"))
    return Text.assemble(*parts)


_KNOWN = {"payload_bytes": "size", "complete_ns": "end", "blocked_ns": "blocked time"}


def _unknown(info: RunInfo) -> Text:
    """Return the values that are unknown for calls, with the number of calls that have them."""
    num_calls = info.num_rows["comm"]
    notes = {name: known_note(info.num_known[name], num_calls) for name in _KNOWN}
    texts = [f"{_KNOWN[name]} {note}" for name, note in notes.items() if note]
    return Text("; ".join(texts), style="yellow")


def _listed(ranks: tuple[int, ...]) -> str:
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs_of(ranks)]
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(texts)}"


def _row_count(num_rows: int, num_dropped: int) -> Text:
    if num_dropped:
        return Text.assemble(f"{num_rows:,}", (f", and {num_dropped:,} dropped", "yellow"))
    return Text(f"{num_rows:,}")
