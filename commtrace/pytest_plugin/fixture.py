"""The `comms` fixture: access of a running test to its own communication.

    def test_forward(comms):
        with comms.region("forward"), comms.expecting(all_reduce=1):
            model(batch)
        assert comms.counts() == {"all_reduce": 1}

In a rank, a thread or a process that the test has started, it covers that rank; elsewhere all ranks
of the test. It can be passed to ranks as an argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commtrace.atomic_write import make_folder
from commtrace.errors import RecordingError, UsageError
from commtrace.pytest_plugin.expectation import claims_of
from commtrace.pytest_plugin.mismatch import (
    ExpectationError,
    IncompleteRecordingError,
    check,
    spans,
    text_of_observed,
)
from commtrace.pytest_plugin.observed import Observed, observed_in
from commtrace.pytest_plugin.rank_recording import rank_recording
from commtrace.pytest_plugin.short_names import short

if TYPE_CHECKING:
    import pandas

    from commtrace.pytest_plugin.recorded import RecordedTest
    from commtrace.session import Recording
    from commtrace.tracefile import Trace

_OWN_RANK = "rank"


class Comms:
    """Communication so far of the running test, or of the calling rank."""

    def __init__(self, recorded: RecordedTest | None) -> None:
        self._recorded = recorded

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the recording; in another process it covers that rank."""
        return Comms, (None,)

    def __str__(self) -> str:
        """Return the table of all calls, with their source lines."""
        return text_of_observed(self._found())

    @property
    def ranks(self) -> list[int]:
        """Ranks that have recordings."""
        return list(self._found().ranks)

    def counts(self, column: str = "kind", *, rank: int | None = None) -> Counter[str]:
        """Count a rank's calls by kind or by another column: `{"all_reduce": 2}`.

        Raises:
            UsageError: ranks differ and `rank` is None, or the column is unknown.
        """
        found = self._found()
        if column not in type(found).COLUMNS:
            raise UsageError(
                f"comms.counts({column!r})", why=f"it counts by {', '.join(type(found).COLUMNS)}"
            )
        by_rank = {
            each: Counter(getattr(row, column) for row in found.on(each).rows)
            for each in found.ranks
        }
        return _one_of(by_rank, rank, "counts")

    def total(self, column: str | None = None, *, rank: int | None = None) -> int:
        """Return the number of a rank's calls, or the sum of `payload_bytes` or `wire_bytes`.

        Raises:
            UsageError: ranks differ and `rank` is None, or the column cannot be summed.
        """
        found = self._found()
        if column not in (None, "payload_bytes", "wire_bytes"):
            raise UsageError(f"comms.total({column!r})", why="it sums payload_bytes or wire_bytes")
        by_rank = {
            each: sum(1 if column is None else max(getattr(row, column), 0) for row in rows)
            for each in found.ranks
            for rows in [found.on(each).rows]
        }
        return _one_of(by_rank, rank, "total")

    def table(self, name: str = "comm") -> pandas.DataFrame:
        """Return a table of all ranks: comm, ops, groups, ranks, steps, sources, or an analysis.

        If the test ran ranks several times, column `run` distinguishes the runs.
        """
        import pandas

        from commtrace.analyze import CATALOG, analysis_named, load
        from commtrace.schema import TABLES

        analysis = analysis_named(name)
        if name not in TABLES and analysis is None:
            raise UsageError(
                f"there is no table {name!r}", attempt=f"one of {', '.join([*TABLES, *CATALOG])}"
            )
        tables = {}
        for run, trace in self._traces().items():
            frames = load(trace)
            tables[run] = analysis.function(frames) if analysis else getattr(frames, name)
        if len(tables) == 1:
            return next(iter(tables.values()))
        joined = pandas.concat([table.assign(run=run) for run, table in tables.items()])
        return joined.reset_index(drop=True)

    def expect(self, **arguments: Any) -> None:
        """Raise ExpectationError unless the calls so far meet `arguments`, as for the marker."""
        __tracebackhide__ = True
        self._expect(arguments, self._found(), "comms.expect")

    @contextmanager
    def expecting(self, **arguments: Any) -> Iterator[None]:
        """Apply `expect` to the communication of the body."""
        __tracebackhide__ = True
        claims_of(arguments, caller="comms.expecting")
        before = frozenset(row.key for row in self._found().rows)
        yield
        self._expect(arguments, self._found().without(before), "comms.expecting")

    def _expect(self, arguments: dict[str, Any], found: Observed, name: str) -> None:
        __tracebackhide__ = True
        caller = text_of_call(name, arguments)
        claims = claims_of(arguments, caller=name)
        recording = rank_recording() or self._running().own
        if recording.is_on and not recording.is_heard():
            raise IncompleteRecordingError(
                f"{caller} cannot be checked",
                why="the recorder no longer intercepts calls: a test call was not recorded",
            )
        error = check(claims, found, caller=caller)
        if error is not None:
            raise error

    def check(self) -> None:
        """Raise ExpectationError if ranks are inconsistent, as in `commtrace check`."""
        __tracebackhide__ = True
        if rank_recording() is not None:
            raise UsageError(
                "comms.check() in a rank",
                why="it compares all ranks, but a rank has only its own calls",
                attempt="call it in the test, after its ranks have ended, or use consistent=True",
            )
        consistent(self._traces())

    def region(self, name: str) -> AbstractContextManager[None]:
        """Label the communication of the body, on this thread, with region `name`."""
        return self._recording().region(name)

    def step(self) -> None:
        """End the current step and begin the next."""
        self._recording().step()

    def add(self, path: Path | str) -> None:
        """Add the trace that another program has written to `path` to the test's traces."""
        self._running().add(path)

    def save(self, path: Path | str) -> list[Path]:
        """Write the recordings to a run file; further runs of ranks to `name-2.json` and so on."""
        return saved(self._traces(), Path(path))

    def _recording(self) -> Recording:
        return rank_recording() or self._running().own

    def _running(self) -> RecordedTest:
        if self._recorded is None or not self._recorded.has_begun:
            raise RecordingError(
                "comms has no recording",
                found="use in a fixture" if self._recorded else "a process without one",
                why="only the body of the test and its ranks are recorded",
                attempt="use it in the test",
            )
        return self._recorded

    def _traces(self) -> dict[str, Trace]:
        recording = rank_recording()
        return {_OWN_RANK: recording.trace()} if recording else self._running().traces()

    def _found(self) -> Observed:
        return observed_in(self._traces())


def text_of_call(name: str, arguments: dict[str, Any]) -> str:
    """Format a call with its keyword arguments, for error messages."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def saved(traces: dict[str, Trace], path: Path) -> list[Path]:
    """Write traces to run files, except those without communication, unless all lack it."""
    from commtrace.tracefile import write_trace

    make_folder(path.parent)
    communicating = [trace for trace in traces.values() if trace.num_rows("comm")]
    communicating = communicating or list(traces.values())[:1]
    return [
        write_trace(trace, path.with_stem(f"{path.stem}-{number}") if number > 1 else path)
        for number, trace in enumerate(communicating, start=1)
    ]


def consistent(traces: dict[str, Trace]) -> None:
    """Raise ExpectationError if ranks are inconsistent or cannot be compared.

    Raises:
        ExpectationError: the ranks disagree.
        IncompleteRecordingError: there is only one rank.
    """
    __tracebackhide__ = True
    from commtrace.analyze import CATALOG, load

    several = [trace for trace in traces.values() if len(trace.tables["ranks"]["rank"]) > 1]
    if not several:
        raise IncompleteRecordingError(
            "the ranks cannot be compared",
            found="the recording of a single rank",
            why="consistency requires several ranks",
            attempt="run the test on several ranks: threads, processes, or mp.spawn",
        )
    faults = []
    for trace in several:
        problems = CATALOG["consistency"].function(load(trace))
        faults += problems[problems["is_fault"]].to_dict("records")
    if faults:
        lines = [
            f"{each['problem']}: {each['explanation']}"
            + (f" (at {short(each['source'])})" if each["source"] else "")
            for each in faults
        ]
        raise ExpectationError(
            "the ranks are inconsistent",
            found="\n".join(lines[:8]),
            attempt="comms.table('consistency') for details; see docs/testing.md for saving the "
            "trace",
        )


def _one_of(by_rank: dict[int, Any], rank: int | None, name: str) -> Any:
    if rank is not None:
        if rank not in by_rank:
            raise UsageError(
                f"comms.{name}(rank={rank})", found=f"recordings of ranks {spans(by_rank)}"
            )
        return by_rank[rank]
    values = list(by_rank.values())
    if any(value != values[0] for value in values):
        shown = {each: dict(v) if isinstance(v, Counter) else v for each, v in by_rank.items()}
        raise UsageError(
            f"comms.{name}() of {len(values)} ranks",
            found="; ".join(f"rank {each}: {value}" for each, value in shown.items()),
            why="ranks differ, so a rank must be selected",
            attempt=f"comms.{name}(rank={min(by_rank)})",
        )
    return values[0]
