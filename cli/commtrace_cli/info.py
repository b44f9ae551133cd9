"""`commtrace info`: summary of a trace file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table

from commtrace.schema import FORMAT_VERSION
from commtrace.settings import THRESHOLDS, Settings, settings_of
from commtrace.units import text_of_bytes, text_of_duration
from commtrace_cli import options
from commtrace_cli.documents import write_document
from commtrace_cli.terminal import Text, data_console, finish, working

if TYPE_CHECKING:
    from commtrace.tracefile import RunInfo

EXAMPLE = """
Examples:

- `commtrace info run.json`
- `commtrace info run.json --json | jq .info.missing_ranks`
"""


def info(trace: options.Trace, as_json: options.AsJson = False) -> None:
    """Print what a trace is: of which program, ranks and hosts, how large, and what is missing.

    Works for every trace that can be read, also for one in which nothing happened.
    """
    settings = settings_of()
    with working(f"reading {trace}"):
        from commtrace.tracefile import read_trace, run_info

        read = read_trace(trace)
        told = run_info(read)
    if as_json:
        write_document(read.run, {"info": told, "settings": settings})
        return
    console = data_console()
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for heading, line in (*_lines(told), *_lines_of_settings(settings)):
        grid.add_row(heading, line)
    console.print(grid)
    finish([], then=["commtrace", "summary", trace])


def _lines(told: RunInfo) -> Iterator[tuple[str, Text]]:
    size = f", {text_of_bytes(told.num_bytes)}" if told.num_bytes >= 0 else ""
    yield "trace", Text(f"{told.path}{size}")
    yield "format", Text(f"version {told.format_version}, of {FORMAT_VERSION} that are known here")
    yield "program", Text(told.command or "not known")
    yield "recorded", Text(_when(told))
    software = (("torch", told.torch), ("python", told.python))
    known = [f"{name} {version}" for name, version in software if version]
    yield "with", Text(", ".join(known) or "not known")
    yield "ranks", _ranks(told)
    for number, host in enumerate(told.hosts):
        devices = f", on {', '.join(host.devices)}" if host.devices else ""
        name = host.host or "host not known"
        yield "" if number else "hosts", Text(f"{name}: {_listed(host.ranks)}{devices}")
    yield "clocks", Text(told.clock or "not known")
    axes = f", of mesh axes {', '.join(told.mesh_axes)}" if told.mesh_axes else ""
    backends = f", with {', '.join(told.backends)}" if told.backends else ""
    yield "groups", Text(f"{told.num_rows['groups']:,}{axes}{backends}")
    yield "steps", Text(_steps(told))
    yield "calls", _kept(told.num_rows["comm"], told.num_dropped)
    yield "operators", _kept(told.num_rows["ops"], told.num_ops_dropped)
    for name, value in told.others.items():
        text = "; ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield name.replace("_", " "), Text(text)


_ENDS = {
    "marked": "marked by the program",
    "optimizer": "found by the optimizer's step()",
    "profiler": "found by the step() of torch.profiler",
    "scheduler": "found by the LR scheduler's step()",
    "recording": "the recording as a whole",
}


def _steps(told: RunInfo) -> str:
    if not told.num_steps:
        return "none were marked, and none were found"
    how = _ENDS.get(told.steps_from, "")
    return f"{told.num_steps:,}{', ' if how else ''}{how}"


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
    for each in settings.muted:
        places = {"module": each.module, "source": each.source}
        where = "".join(f", {name} {text}" for name, text in places.items() if text != "*")
        yield "", Text(f"muted {each.rule}{where}: {each.reason}")


def _when(told: RunInfo) -> str:
    duration = text_of_duration(told.duration_ns) if told.duration_ns >= 0 else ""
    detail = f"detail {told.detail}" if told.detail else ""
    return ", ".join(filter(None, (told.created, duration, detail))) or "not known"


def _ranks(told: RunInfo) -> Text:
    parts: list[tuple[str, str]] = [(f"{len(told.recorded_ranks)} of {told.world_size}", "")]
    if told.missing_ranks:
        parts.append((f", no recording of {_listed(told.missing_ranks)}", "bold red"))
    if told.torn_ranks:
        parts.append((f", not closed by {_listed(told.torn_ranks)}", "yellow"))
    return Text.assemble(*parts)


def _listed(ranks: tuple[int, ...]) -> str:
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(texts)}"


def _kept(num_rows: int, num_dropped: int) -> Text:
    if num_dropped:
        return Text.assemble(f"{num_rows:,}", (f", and {num_dropped:,} dropped", "yellow"))
    return Text(f"{num_rows:,}")
