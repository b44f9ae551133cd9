"""Report of a hang: where the ranks of a test were, and where they parted before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from commtrace.errors import LaunchError, TraceError
from commtrace.launching.watchdog import DumpedStack, format_stacks
from commtrace.tracefile import SPOOL_SUFFIX, Trace, join, read_spool


def text_of_partings(traces: Iterable[Trace]) -> str:
    """Return what the check finds in runs that failed, and where their ranks parted before."""
    from commtrace.analyze import load
    from commtrace.analyze.consistency import consistency
    from commtrace.analyze.divergence import divergences, lines_of

    texts: list[str] = []
    for trace in traces:
        frames = load(trace)
        problems = consistency(frames)
        texts += problems.loc[problems["is_fault"], "explanation"].tolist()
        for row in divergences(frames).to_dict("records"):
            lines = lines_of({str(name): value for name, value in row.items()})
            width = max(len(name) for name, _ in lines)
            texts.append("\n".join(f"  {name:{width}}  {text}" for name, text in lines))
    return "\n".join(texts)


def hang_error(
    stuck: Mapping[int, DumpedStack], timeout_s: float, traces: Iterable[Trace]
) -> LaunchError:
    """Return the error of a test whose ranks were ended.

    Args:
        stuck: Stacks by process of the ranks that still ran.
        timeout_s: The time that they had.
        traces: What they have recorded.
    """
    traces = list(traces)
    ranks = [trace.tables["ranks"] for trace in traces]
    rank_of = {
        int(pid): int(rank)
        for table in ranks
        for pid, rank in zip(table["pid"], table["rank"], strict=True)
    }
    by_rank = {rank_of.get(pid, pid): _below_start(stack) for pid, stack in stuck.items()}
    return LaunchError(
        f"the ranks of the test did not end within {timeout_s:g} s, and were ended",
        found=_found(by_rank, traces),
        attempt="another timeout= of the marker, or --comms-timeout, if they take that long",
    )


def launch_error(
    name: str, stuck: Mapping[int, DumpedStack], timeout_s: float, folder: Path
) -> LaunchError:
    """Return the error of a layout whose ranks were ended; `folder` has their spools."""
    return LaunchError(
        f"{name} did not end within {timeout_s:g} s",
        found=_found(stuck, _traces_in(folder)),
        attempt="another timeout_s of the marker, if it takes that long",
    )


def _found(stuck: Mapping[int, DumpedStack], traces: Iterable[Trace]) -> str:
    parted = text_of_partings(traces) or "no fault of the communication"
    return f"{parted}\nranks that were still running:\n{format_stacks(stuck)}"


def _traces_in(folder: Path) -> list[Trace]:
    """Return the run whose spools are in a folder, as far as they were written."""
    spools = []
    for path in sorted(folder.glob(f"*{SPOOL_SUFFIX}")):
        with suppress(TraceError):  # a rank that was killed before it wrote anything
            spools.append(read_spool(path))
    return [join(spools)] if spools else []


_STARTERS = (
    *("<string>", "commtrace/pytest_plugin/rank_recording.py"),
    "torch/multiprocessing/spawn.py",
)


def _below_start(stack: DumpedStack) -> DumpedStack:
    """Return a stack without the calls that start a process."""
    starts = [
        place
        for place, (file, _, _) in enumerate(stack)
        if file.endswith(_STARTERS) or "/multiprocessing/" in file
    ]
    return stack[max(starts, default=-1) + 1 :] or stack
