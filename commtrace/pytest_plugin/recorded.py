"""Recording of a test: of its own process, and of every rank that it starts.

    recorded = RecordedTest(detail="op", stacks=False)
    recorded.begin(); ...the test...; recorded.end()
    recorded.traces(), recorded.gaps()

Ranks are threads or processes of `dtensor_core`'s test harness, which announces its runs; processes
of `multiprocessing`, including torch's `spawn` and its test cases, whose targets are wrapped; and
any other threads, whose calls the test's own recording contains. The body of the test is recorded,
not its fixtures.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commtrace.errors import EmptyTraceError, LaunchError, UnbegunSpoolError
from commtrace.event import RankRow
from commtrace.launching.temporary_folders import scratch_folder
from commtrace.launching.watchdog import TimeoutReport, watchdog
from commtrace.pytest_plugin import children
from commtrace.pytest_plugin.expectation import Claim
from commtrace.pytest_plugin.meshes import announce, naming_axes
from commtrace.pytest_plugin.mismatch import spans
from commtrace.pytest_plugin.observed import OWN
from commtrace.pytest_plugin.parting import hang_error
from commtrace.pytest_plugin.rank_recording import NOTE_SUFFIX, RankRecording, why_incomplete
from commtrace.recorder.bridge import set_rank_context
from commtrace.session import Recording, record
from commtrace.tracefile import SPOOL_SUFFIX, Trace, join, read_spool, read_trace
from commtrace.tracefile.spool import Spool
from commtrace.tracefile.trace import StringTable, table_of

_CHILDREN = "children"


@dataclass(frozen=True, slots=True)
class RecordingGap:
    """Reason why calls may be missing, and the ranks concerned; None means any rank."""

    why: str
    ranks: frozenset[int] | None = None

    def concerns(self, claims: Sequence[Claim]) -> bool:
        """Return whether any of the claims depends on calls that may be missing."""
        return any(
            self.ranks is None or not isinstance(claim.ranks, tuple) or self.ranks & {*claim.ranks}
            for claim in claims
        )


class RecordedTest:
    """Recording of a test, from its start until its verdict."""

    def __init__(self, *, detail: str, stacks: bool, timeout_s: float = 0) -> None:
        self._detail = detail
        self._timeout_s = timeout_s
        self._watchdog = ExitStack()
        self._ended = TimeoutReport()
        self._stacks = stacks
        self._own: Recording = record(detail=detail, stacks=stacks)
        self._folder: Path | None = None
        self._scratch = ExitStack()
        self._num_ranks: dict[str, int] = {}
        self._added: dict[str, Trace] = {}
        self._why_incomplete = ""
        self._meshes = naming_axes()
        self._is_busy = self._is_watched = False
        self.has_begun = False
        self.num_past = 0
        self.not_recorded: list[str] = []

    @property
    def own(self) -> Recording:
        """Recording of the test's own process."""
        return self._own

    def begin(self, meshes: Iterable[Any] = ()) -> None:
        """Start recording; `meshes` are those that the test receives from fixtures."""
        self._own.__enter__()
        self._meshes.__enter__()
        for mesh in meshes:
            announce(mesh)
        self.has_begun = True
        set_rank_context(self._record_ranks)
        children.watch(self)

    def end(self) -> None:
        """Stop recording."""
        children.watch(None)
        self._watchdog.close()
        self._meshes.__exit__(None, None, None)
        set_rank_context(None)
        # While the recording is still on, since a recording that is off hears no test call.
        self._why_incomplete = why_incomplete(self._own)
        # The recording's warning becomes a gap, even where the test turns warnings into errors.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._own.__exit__(None, None, None)
        self._why_incomplete = self._why_incomplete or "".join(
            str(each.message) for each in caught[:1]
        )

    def forget(self) -> None:
        """Remove the files that ranks have left."""
        self._scratch.close()

    def add(self, path: Path | str) -> None:
        """Add a trace that another program has written to the test's traces."""
        self._added[f"added-{len(self._added)}"] = read_trace(path)

    @contextmanager
    def _record_ranks(self, world_size: int) -> Iterator[RankRecording]:
        """Record the ranks of the test harness separately; pause the own recording meanwhile."""
        name = f"ranks-{len(self._num_ranks):05d}"
        self._num_ranks[name] = world_size
        self._is_busy = True
        try:
            with self._own.paused():
                yield self._rank_recording(name)
        finally:
            self._is_busy = False

    def child(self) -> RankRecording | None:
        """Return the recording for a process about to start; None if the harness records it."""
        if self._is_busy:
            return None
        recording = self._rank_recording(_CHILDREN)
        if not self._timeout_s:
            return recording
        if not self._is_watched:
            self._is_watched = True
            folder = Path(recording.folder)
            self._ended = self._watchdog.enter_context(watchdog(folder, self._timeout_s))
        return replace(recording, test_pid=os.getpid())

    def hang(self) -> LaunchError | None:
        """Return the error of processes that were ended, since they took too long."""
        if not self._ended.time_ns:
            return None
        traces = [trace for name, trace in self.traces().items() if name != OWN]
        return hang_error(self._ended.stacks, self._timeout_s, traces)

    def passed_by(self) -> None:
        """Count a call on a group whose calls the dispatcher may not see."""
        self.num_past += 1

    def started(self, program: str) -> None:
        """Note a program that is started and not recorded."""
        if not self._is_busy:
            self.not_recorded.append(program)

    def _rank_recording(self, name: str) -> RankRecording:
        if self._folder is None:
            self._folder = self._scratch.enter_context(scratch_folder())
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        return RankRecording(str(folder), self._detail, self._stacks)

    def traces(self) -> dict[str, Trace]:
        """Return the traces recorded so far, by name; the test's own process comes first."""
        found = {OWN: _with_all_ranks(self._own.trace())}
        if self._folder is not None:
            for folder in sorted(self._folder.iterdir()):
                for number, spools in enumerate(_runs(_spools(folder, self._num_ranks))):
                    found[f"{folder.name}-{number}"] = join(spools)
        return found | self._added

    def gaps(self) -> list[RecordingGap]:
        """Return the reasons why the recording may be incomplete, most important first."""
        traces = self.traces()
        reasons = [RecordingGap(self._why_incomplete)] if self._why_incomplete else []
        dropped = sum(max(n, 0) for t in traces.values() for n in t.tables["ranks"]["num_dropped"])
        if dropped:
            reasons.append(
                RecordingGap(
                    f"{dropped} calls were dropped to stay within the limits of the recording"
                )
            )
        own = traces[OWN].num_rows("comm")
        if self.num_past > own:
            reasons.append(
                RecordingGap(
                    f"of {self.num_past} calls on torch's threaded group (MultiThreadedTestCase), "
                    f"{self.num_past - own} bypassed torch's dispatcher, where calls are recorded; "
                    "functional collectives pass it, and so do all calls in processes and in "
                    "dtensor_core.testing.run_threads"
                )
            )
        reasons += self._of_ranks()
        for name, trace in traces.items():
            if name != OWN:
                reasons += _of_trace(trace)
        if self.not_recorded and not any(trace.num_rows("comm") for trace in traces.values()):
            reasons.append(RecordingGap(_of_programs(self.not_recorded)))
        return reasons

    def _of_ranks(self) -> Iterator[RecordingGap]:
        """Yield the problems that ranks report, and ranks that left no recording."""
        for folder in sorted(self._folder.iterdir()) if self._folder else ():
            for note in sorted(folder.glob(f"*{NOTE_SUFFIX}")):
                yield RecordingGap(f"in one of the ranks, {note.read_text(encoding='utf-8')}")
            if list(folder.glob(f"*{NOTE_SUFFIX}")):
                continue
            num, seen = self._num_ranks.get(folder.name, 0), len(list(folder.glob(_ANY_SPOOL)))
            if seen < num:
                yield RecordingGap(f"{num} ranks ran, but only {seen} of them left a recording")


_ANY_SPOOL = f"*{SPOOL_SUFFIX}"


def _spools(folder: Path, num_ranks: dict[str, int]) -> list[Spool]:
    """Read the spools in a folder; a child process that is not a rank left none of use."""
    spools = []
    for path in sorted(folder.glob(_ANY_SPOOL)):
        with suppress(EmptyTraceError, UnbegunSpoolError):
            spools.append(read_spool(path))
    if folder.name in num_ranks:
        return spools
    return [each for each in spools if each.facts["run"].get("process_group") != "none"]


def _runs(spools: list[Spool]) -> list[list[Spool]]:
    """Group spools by run; a repeated rank belongs to another run."""
    runs: list[dict[int, Spool]] = []
    for spool in sorted(spools, key=lambda each: each.facts["start_ns"]):
        rank = spool.facts["rank"]
        run = next((each for each in runs if rank not in each), None)
        if run is None:
            run = {}
            runs.append(run)
        run[rank] = spool
    return [list(run.values()) for run in runs]


def _of_trace(trace: Trace) -> Iterator[RecordingGap]:
    missing = trace.run.get("missing_ranks") or []
    if missing and trace.run.get("process_group") != "fake":
        yield RecordingGap(
            f"of {trace.run['world_size']} ranks, {spans(missing)} left no recording",
            frozenset(missing),
        )
    complete = zip(trace.tables["ranks"]["rank"], trace.tables["ranks"]["complete"], strict=True)
    incomplete = [int(rank) for rank, is_complete in complete if not is_complete]
    if incomplete:
        yield RecordingGap(
            f"rank {spans(incomplete)} was killed, or still running, before its recording was "
            "closed",
            frozenset(incomplete),
        )


def _of_programs(started: Sequence[str]) -> str:
    noun = "a program that is" if len(started) == 1 else f"{len(started)} programs that are"
    return (
        f"no communication was recorded, and the test started {noun} not recorded: "
        f"{'; '.join(started[:3])}"
    )


def _with_all_ranks(trace: Trace) -> Trace:
    """Return the trace of a process whose threads are ranks, with a row for each of them."""
    comm = trace.tables["comm"]
    seen = sorted({int(rank) for rank in comm["rank"]})
    known = [RankRow(*row) for row in trace.rows("ranks")]
    if not seen or {row.rank for row in known} >= {*seen}:
        return trace
    rows = [
        known[0]._replace(rank=rank, num_events=sum(each == rank for each in comm["rank"]))
        for rank in seen
    ]
    world_size = max(int(trace.run["world_size"]), seen[-1] + 1)
    facts: dict[str, Any] = {
        "world_size": world_size,
        "missing_ranks": sorted({*range(world_size)} - {*seen}),
    }
    tables = {**trace.tables, "ranks": table_of("ranks", rows, StringTable([""]))}
    return replace(trace, run={**trace.run, **facts}, tables=tables)
