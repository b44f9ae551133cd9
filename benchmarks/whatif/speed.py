"""Speed and memory of a replay of 1,024 ranks with irregular groups and pipelines.

The run is read from its file by a process of its own, whose memory and processor time are measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

from benchmarks.whatif.irregular import Irregular, irregular_trace
from commtrace.analyze import load
from commtrace.analyze.replay.build import work_graph
from commtrace.analyze.replay.changes import changed, parsed
from commtrace.analyze.replay.graph import replayed
from commtrace.analyze.replay.outcome import step_lengths, step_time
from commtrace.analyze.replay.prices import prices_of
from commtrace.tracefile import write_trace
from commtrace.units import text_of_bytes

LEAST_CALLS_PER_S = 1_000_000
MOST_SECONDS = 2.0
MOST_BYTES = 1_500_000_000
CHANGES = (
    "remove where kind=send",
    "bandwidth *2 where kind=all_reduce",
    "balance",
    "merge where kind=all_reduce",
    "compute *0.5 where rank=5",
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the report; `is_kept` is None without a bar."""

    name: str
    measured: str
    bar: str = ""
    is_kept: bool | None = None


def speeds(folder: Path, num_calls: int) -> Iterator[Figure]:
    """Yield the figures of a run of about `num_calls` calls."""
    path = folder / "irregular.json"
    write_trace(irregular_trace(Irregular(num_calls=num_calls)), path)
    command = [sys.executable, "-m", "benchmarks.whatif.speed", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    yield from (Figure(**each) for each in json.loads(done.stdout))


def timed(function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """Return the result of a call and its seconds of processor time."""
    begin = time.process_time()
    result = function(*args)
    return result, time.process_time() - begin


def figures_of(path: Path) -> list[Figure]:
    """Return the figures of a run file."""
    run, loading = timed(load, path)
    graph, building = timed(work_graph, run)
    replayed(graph)  # compiles
    _, replaying = timed(replayed, graph)
    _, pricing = timed(prices_of, run)
    per_s = run.num_calls / replaying
    found = [
        Figure(f"calls of {run.num_ranks} ranks", f"{run.num_calls:,}"),
        Figure("load the run", f"{loading:.2f} s"),
        Figure("build its graph", f"{building:.2f} s"),
        Figure("latency and bandwidth", f"{pricing:.2f} s"),
        Figure(
            "calls replayed per second", f"{per_s:,.0f}", f"{LEAST_CALLS_PER_S:,}",
            per_s >= LEAST_CALLS_PER_S,
        ),
    ]  # fmt: skip
    for text in CHANGES:
        _, seconds = timed(_changed, run, graph, text)
        found.append(
            Figure(
                f"change: {text}",
                f"{seconds:.2f} s",
                f"{MOST_SECONDS:g} s",
                seconds <= MOST_SECONDS,
            )
        )
    peak = getrusage(RUSAGE_SELF).ru_maxrss * 1024
    limit = text_of_bytes(MOST_BYTES)
    return [*found, Figure("peak memory", text_of_bytes(peak), limit, peak <= MOST_BYTES)]


def _changed(run: Any, graph: Any, text: str) -> float:
    replay = replayed(changed(run, graph, [parsed(text)]).graph)
    return step_time(run, step_lengths(run, replay)).step_ns


if __name__ == "__main__":
    from dataclasses import asdict

    print(json.dumps([asdict(each) for each in figures_of(Path(sys.argv[1]))]))
