"""`commtrace.launch`: run a function of this process on several local ranks, recorded.

    run = commtrace.launch(train, nproc=4)
    run.values[0], run.output[0], run.timeline()

It returns the run, as `commtrace.load` would, with the values that the ranks returned and their
output. If a rank raises, dies or does not finish in time, the error has its traceback.
"""

from __future__ import annotations

import dataclasses
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commtrace.errors import EmptyTraceError, LaunchError, RankError, UsageError
from commtrace.exit_codes import text_of_exit
from commtrace.launching.failures import advice_on, error_of
from commtrace.launching.launcher import LaunchResult, results_of, run_function
from commtrace.launching.pickling import pack
from commtrace.launching.temporary_folders import remove_abandoned, scratch_folder
from commtrace.launching.watchdog import format_stacks
from commtrace.process_options import VALUE_LEVELS, ProcessOptions
from commtrace.settings import DETAILS
from commtrace.tracefile import Trace, read_parts, write_trace
from commtrace.views.cells import names_of_cells, with_cells, with_names
from commtrace.views.run import Run, StoredViews, fields_of, load

_INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Launched(Run):
    """A run of `launch`.

    Attributes:
        values: The ranks' return values, by rank.
        output: The ranks' printed output, by rank.
    """

    values: tuple[Any, ...] = ()
    output: tuple[str, ...] = ()


def launch(
    function: Callable[..., Any],
    nproc: int = 4,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    path: Path | str | None = None,
    detail: str = "op",
    stacks: bool = False,
    values: str | None = None,
    backend: str | None = "gloo",
    timeout_s: float | None = 300.0,
) -> Launched:
    """Call `function(*args, **kwargs)` on `nproc` ranks of this machine, each of them recorded.

    Each rank is a process with RANK and WORLD_SIZE as under torchrun. The ranks' output is printed
    as it arrives, prefixed with the rank.

    Args:
        function: Function to call, possibly defined in a notebook's cell. It is copied to the ranks
            with the variables that it uses; its return value is copied back.
        nproc: Number of ranks.
        args: Positional arguments of the function.
        kwargs: Keyword arguments of the function.
        path: Run file to write; none by default.
        detail: As for `record`.
        stacks: As for `record`.
        values: As for `record`, for `commtrace.compare`.
        backend: Backend of the process group; None leaves its creation to the function.
        timeout_s: Limit on the duration of a rank's whole call, in seconds.

    Returns:
        The run, with the ranks' return values and output.

    Raises:
        RankError: A rank raised, died or did not finish in time. It has the traceback, and in `run`
            the calls recorded until then.
        LaunchError: The ranks were stopped from outside, or left no recording.
        UsageError: The function cannot be copied, or `nproc`, `detail` or `values` is invalid.
    """
    name = getattr(function, "__name__", type(function).__name__)
    _check(name, nproc, detail, values)
    parcel = pack(function, args, kwargs or {})
    for sentence in remove_abandoned():
        warnings.warn(sentence, stacklevel=2)
    with scratch_folder() as folder:
        result = run_function(
            parcel,
            name,
            nproc=nproc,
            spool_folder=folder,
            options=ProcessOptions(detail, stacks, values=values or ""),
            backend=backend,
            timeout_s=timeout_s,
        )
        trace = _trace(folder, path)
        run = load(trace) if trace else None
        if not result.ok:
            raise _error(result, name, nproc, timeout_s, run)
        if run is None:
            raise LaunchError(f"{name} left no recording")
        returned = results_of(result, nproc)
    return Launched(**fields_of(run), values=returned, output=result.output)


def _check(name: str, nproc: int, detail: str, values: str | None) -> None:
    if nproc < 1:
        raise UsageError(f"cannot run {name} on {nproc} ranks", why="a run needs at least one rank")
    if detail not in DETAILS:
        raise UsageError(
            f"cannot record with detail {detail!r}",
            why=f"a detail is one of {', '.join(map(repr, DETAILS))}",
        )
    if values is not None and values not in VALUE_LEVELS:
        raise UsageError(
            f"cannot record the values {values!r}",
            why=f"a level is one of {', '.join(map(repr, VALUE_LEVELS))}",
        )


def _trace(folder: Path, path: Path | str | None) -> Trace | None:
    """Return the recorded trace, also written to `path` if given; None if there is none."""
    try:
        trace = with_cells(read_parts([folder]))
    except EmptyTraceError:
        return None
    where = write_trace(trace, path) if path is not None else None
    return dataclasses.replace(trace, path=where)


def _error(
    result: LaunchResult,
    name: str,
    nproc: int,
    timeout_s: float | None,
    run: Run | StoredViews | None,
) -> BaseException:
    names = names_of_cells()
    if result.failed_rank is None:
        if result.exit_code == _INTERRUPTED:
            return KeyboardInterrupt()
        return LaunchError(f"{name} was stopped", found=text_of_exit(result.exit_code))
    if result.stuck:
        stacks = with_names(format_stacks(result.stuck), names)
        summary = f"{name} on {nproc} ranks did not end within {timeout_s:g} s"
        return RankError(
            summary,
            rank=result.failed_rank,
            traceback=stacks,
            found=_unfinished(result),
            run=run,
        )
    text = with_names(result.traceback, names).rstrip("\n")
    error = error_of(text)
    return RankError(
        f"{name} failed on rank {result.failed_rank} of {nproc}",
        rank=result.failed_rank,
        traceback=text,
        found=error or text_of_exit(result.exit_code),
        attempt=advice_on(error),
        run=run,
    )


def _unfinished(result: LaunchResult) -> str:
    ranks = sorted(result.stuck)
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} still running"
