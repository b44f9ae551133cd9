"""`commtrace.record(...)`: the entry point for recording a program's communication.

    with commtrace.record("run.json") as recording:
        for batch in batches:
            train(batch)
            recording.step()

Without a path the recording stays in memory: `recording.counts()`, `.table()`, `.save(path)`. With
a path, each rank writes a spool while it runs, at least once a second, and rank 0 merges the spools
into the file when the recording ends. A path that ends in .comm is a folder that keeps the spools,
for ranks on hosts without a common folder, and for large runs. In a process that `commtrace run` or
`commtrace record` started, everything is recorded from the first line on. A recording that the
script makes there adds its steps and regions to that recording and writes no file of its own;
events outside it belong to no step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from commtrace.errors import UsageError
from commtrace.exit_handlers import call_before_leaving
from commtrace.process_options import VALUE_LEVELS, ProcessOptions, ring_bytes
from commtrace.recorder.attribution.stack_frames import count_as_libraries
from commtrace.session.recording import Recording
from commtrace.settings import DETAILS, settings_of
from commtrace.tracefile.destinations import Memory, Store, store_for

__all__ = ["Recording", "record", "record_process"]

_MAX_CALLS_IN_MEMORY = 2_000_000


def record(
    path: Path | str | None = None,
    *,
    detail: str | None = None,
    stacks: bool = False,
    max_calls: int | None = None,
    every: int | None = None,
    ring: int | str | None = None,
    merge_timeout_s: float = 30.0,
    libraries: Sequence[str] = (),
    values: str | None = None,
) -> Recording:
    """Return a recording, to be used in a `with` statement or as a decorator.

    Args:
        path: the run file to write (replaced if it exists), or a folder RUN.comm, to which
            each rank adds its spool; None keeps the recording in memory.
        detail: "op" (operators too) or "collective" (communication only, for long runs); the
            default is set in pyproject.toml, or else "op".
        stacks: record the full Python stack of each call, not only the user's line.
        max_calls: bound on the calls kept; ten times as many operators are kept, and the rest
            is only counted. By default there is no bound for a file, and two million in memory.
        every: record steps 0, `every`, twice `every` and so on only, and what precedes the first
            step. If the program marks no steps, the second step is recorded too.
        ring: keep only the last so many bytes of each rank's spool, such as "64MB"; what came
            before counts as dropped.
        merge_timeout_s: time that rank 0 waits at the end for ranks still recording; a rank without
            a spool is named in the file. Spools that are still written then stay beside the file,
            in PATH.spools, to be merged with it.
        libraries: packages whose lines do not count as the user's own, besides installed packages
            and those named in pyproject.toml.
        values: keep a fingerprint of tensors, to compare ranks and runs: "module" (inputs and
            outputs of modules, gradients, parameters and states of optimizers) or "op" (results of
            operators too); None keeps none.

    Raises:
        UsageError: the detail or the level of values is unknown, `every` is no number of steps,
            `ring` is no size, the path names no file, or a setting is invalid.
    """
    settings = settings_of()
    detail = detail or settings.detail or DETAILS[0]
    if detail not in DETAILS:
        raise UsageError(
            f"cannot record with detail {detail!r}",
            why=f"a detail is one of {', '.join(map(repr, DETAILS))}",
        )
    if values is not None and values not in VALUE_LEVELS:
        raise UsageError(
            f"cannot record values={values!r}",
            why=f"a level is one of {', '.join(map(repr, VALUE_LEVELS))}",
            attempt='values="op" for results of operators, or None for no fingerprints',
        )
    if every is not None and (type(every) is not int or every < 1):
        raise UsageError(
            "cannot record every Nth step",
            found=f"every={every!r}",
            why="it is a number of steps, from 1",
            attempt="every=100, or None to record all steps",
        )
    kept = ring_bytes(ring)
    if path is not None and not Path(path).name:
        raise UsageError(f"cannot record to {str(path)!r}", why="the path has no file name")
    count_as_libraries((*settings.libraries, *libraries), settings.own_packages)
    if path is None or Recording.of_process is not None:
        bound = max_calls or (None if kept else _MAX_CALLS_IN_MEMORY)
        return Recording(Memory(), ProcessOptions(detail, stacks, bound, every, kept, values or ""))
    options = ProcessOptions(detail, stacks, max_calls, every, kept, values or "")
    return Recording(store_for(Path(path), merge_timeout_s), options)


def record_process(store: Store, options: ProcessOptions) -> Recording:
    """Return the recording of a whole process, whose own recordings then add to it."""
    settings = settings_of()
    count_as_libraries(settings.libraries, settings.own_packages)
    recording = Recording.of_process = Recording(store, options)
    call_before_leaving(recording.end_at_once, recording.flush_at_once)
    return recording
