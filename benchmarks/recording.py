"""Cost of recording: steps of a Transformer, single calls, bytes per call, the writer, memory.

A step is timed alternately without and with a recording. The recording begins, and records a first
step, before the clock starts; the time of its background writer is included. It is a step without
details of operators, as all but the first two and each hundredth are. The cost of torch's
CommDebugMode is shown for comparison.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.distributed._functional_collectives import all_reduce, wait_tensor
from torch.distributed.tensor.debug import CommDebugMode

import commtrace
from benchmarks.kit import OURS, RANKS, TORCHS, fake_ranks, kits, mesh_of
from benchmarks.measure import Figures, repeated, resident_bytes
from benchmarks.models import MODEL, NARROW, parallel_transformer, step_of, transformer_args
from benchmarks.opcodes import opcodes_of
from commtrace.tracefile.spool_reading import batches
from commtrace.units import NANOSECONDS_PER_SECOND, text_of_bytes, text_of_duration
from tests.dtensor_core.models.small_models import Transformer

PIPED_WIDTH = 120
PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Within:
    """A step that runs in a context, which is entered before the clock starts."""

    step: Callable[[], object]
    context: Callable[[], AbstractContextManager[Any]]

    def __call__(self) -> object:
        """Run a step."""
        return self.step()


# (model, width, detail that is recorded, bar)
STEPS = (
    (PLAIN, MODEL.dim, "collective", 1.05),
    (OURS, MODEL.dim, "collective", 1.05),
    (OURS, NARROW.dim, "collective", 1.05),
    (TORCHS, MODEL.dim, "collective", 1.05),
    (PLAIN, MODEL.dim, "op", 2.5),
    (OURS, MODEL.dim, "op", 1.5),
    (OURS, NARROW.dim, "op", 1.5),
    (TORCHS, MODEL.dim, "op", 1.7),
    (PLAIN, MODEL.dim, "CommDebugMode", None),
    (TORCHS, MODEL.dim, "CommDebugMode", None),
)
_NUM_WARMING = 3
_USUAL = 2
"""Number of a step whose operators have no details."""
# (model, width, detail that is recorded, number of the step, most instructions that it adds); a
# ratio would depend on torch's own, which are 3 % fewer in torch 2.15. Some 200 of a call, and of
# each call here, look up the frames around it, from which the branch is found by which ranks
# parted. The first step has details of operators.
OPCODES = (
    (OURS, NARROW.dim, "collective", _USUAL, 31_000),
    (OURS, NARROW.dim, "op", _USUAL, 268_000),
    (OURS, NARROW.dim, "op", 0, 448_000),
)
_SHORT_TURN_S = 0.005


class _Calling(nn.Module):
    """A module that communicates between two operators."""

    def __init__(self, call: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.call = call

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """Call the collective."""
        tensor.mul_(1)
        self.call(tensor)
        return tensor.add(1)


def _synchronous(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)


def _asynchronous(tensor: torch.Tensor) -> None:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()


def _functional(tensor: torch.Tensor) -> None:
    group = dist.group.WORLD
    assert group is not None
    wait_tensor(all_reduce(tensor, "sum", group))


# (name, function, most instructions that recording one at detail op adds)
CALLS = (
    ("synchronous", _synchronous, 2_240),
    ("asynchronous", _asynchronous, 2_240),
    ("functional", _functional, 2_700),
    ("synchronous, in a module, with two operators", _Calling(_synchronous), 3_850),
    ("functional, in a module, with two operators", _Calling(_functional), 3_970),
)


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report; `kept` is False on a violation of the bar."""

    name: str
    cells: tuple[str, ...]
    bar: str
    kept: bool | None


def recorded_step(model: str, width: int, detail: str, bar: float | None, rounds: int) -> Result:
    """Measure the ratio of a step's time with a recording to its time without."""
    step = _step(model, width)
    contenders: dict[str, Callable[[], object]] = {"without": step}
    if detail == "CommDebugMode":
        contenders["with"] = _counted_once(step)
    else:
        contenders["with"] = Within(step, lambda: _recorded(detail))
    found: dict[str, Figures] = repeated(contenders, num_rounds=rounds, turn_s=0.1)
    ratio = found["with"].ratio(found["without"])
    times = (text_of_duration(found[name].median * NANOSECONDS_PER_SECOND) for name in contenders)
    name = f"a step of the Transformer of width {width}, {model}, {detail}"
    kept = None if bar is None else ratio <= bar
    return Result(name, (*times, f"{ratio:.2f}"), "" if bar is None else f"{bar:.2f}", kept)


def _fewest_opcodes(call: Callable[[], object]) -> int:
    """Return the fewest instructions of three calls: some also do what a write has left to do."""
    return min(opcodes_of(call) for _ in range(3))


@contextmanager
def _recorded(detail: str, step: int = _USUAL) -> Iterator[None]:
    """Record in the body, which is in the step with a number."""
    with commtrace.record(detail=detail) as recording:
        for _ in range(step):
            recording.step()
        yield


def recorded_opcodes(model: str, width: int, detail: str, number: int, bar: int) -> Result:
    """Measure Python's instructions that a recording adds to a step.

    Machines differ in time, but hardly in this. The background writer is not included.
    """
    step = _step(model, width)
    for _ in range(_NUM_WARMING):
        step()
    without = opcodes_of(step)
    with _recorded(detail, number):
        for _ in range(_NUM_WARMING):
            step()
        recorded = _fewest_opcodes(step)
    added = recorded - without
    name = f"opcodes of step {number} of width {width}, {model}, {detail}"
    cells = (f"{without:,}", f"{recorded:,}", f"+{added:,}")
    return Result(name, cells, f"+{bar:,}", added <= bar)


def opcodes_of_a_call(name: str, call: Callable[[torch.Tensor], object], bar: int) -> Result:
    """Measure Python's instructions that a recording with operators adds to a tiny collective."""
    run = partial(call, torch.ones(4))
    for _ in range(_NUM_WARMING):
        run()
    without = opcodes_of(run)
    with _recorded("op"):
        for _ in range(_NUM_WARMING):
            run()
        added = _fewest_opcodes(run) - without
    cells = (f"{without:,}", f"{without + added:,}", f"+{added:,}")
    return Result(f"opcodes of a tiny collective, {name}, op", cells, f"+{bar:,}", added <= bar)


def time_of_a_call(name: str, call: Callable[[torch.Tensor], object], rounds: int) -> Result:
    """Measure the thread time that a recording with operators adds to a tiny collective.

    That of the shortest turn, since other programs on the machine can only add to it.
    """
    run = partial(call, torch.ones(4))
    contenders = {"without": run, "with": Within(run, lambda: _recorded("op"))}
    found = repeated(contenders, num_rounds=rounds, turn_s=_SHORT_TURN_S, clock=time.thread_time)
    without, recorded = (min(found[each].rounds) for each in contenders)
    times = (without, recorded, recorded - without)
    cells = tuple(text_of_duration(each * NANOSECONDS_PER_SECOND) for each in times)
    bar_s = 40e-6
    bar = text_of_duration(bar_s * NANOSECONDS_PER_SECOND)
    kept = None if isinstance(call, nn.Module) else recorded - without <= bar_s
    return Result(f"a tiny collective, {name}, op", cells, "" if kept is None else bar, kept)


def _counted_once(step: Callable[[], object]) -> Callable[[], object]:
    """Run each step in a new mode: torch's fails if a module is called again in the same mode."""

    def count() -> None:
        with CommDebugMode():
            step()

    return count


def _step(model: str, width: int = MODEL.dim) -> Callable[[], object]:
    args = transformer_args(width)
    if model == PLAIN:
        torch.manual_seed(0)
        return step_of(Transformer(args))
    mesh = mesh_of((RANKS,))
    return step_of(parallel_transformer(kits()[model], mesh, args, by_sequence=False))


def beginning_and_end(num_recordings: int = 50) -> list[Result]:
    """Measure the program's time to begin, and to end, a recording.

    Operators that were recorded by its end are written before, as the background writer does.
    """
    step = _step(OURS, NARROW.dim)
    took: dict[str, list[int]] = {"begin": [], "end": []}
    for _ in range(num_recordings):
        recording = commtrace.record()
        begin = time.thread_time_ns()
        recording.__enter__()
        took["begin"].append(time.thread_time_ns() - begin)
        step()
        recording._output.flush()
        begin = time.thread_time_ns()
        recording.__exit__(None, None, None)
        took["end"].append(time.thread_time_ns() - begin)
    found = {f"to {name} a recording": statistics.median(each) for name, each in took.items()}
    limit = 1_000_000
    return [
        Result(name, ("", "", text_of_duration(ns)), text_of_duration(limit), ns <= limit)
        for name, ns in found.items()
    ]


def bytes_of_a_call() -> list[Result]:
    """Measure the bytes per call in a file, over ten tensor-parallel steps."""
    step = _step(OURS)
    with commtrace.record(detail="collective") as recording:
        for _ in range(10):
            step()
            recording.step()
    number = recording.total()
    with tempfile.TemporaryDirectory() as folder:
        path = recording.save(Path(folder) / "run.json")
        written = path.stat().st_size
    (spool,) = recording._output.buffer.contents()
    packed = len(spool) / number
    loose = sum(len(zlib.decompress(payload)) for _, payload in batches(spool)) / number
    return [
        _at_most("bytes a call in a spool, before compression", loose, 100, "B"),
        _at_most("bytes a call in a spool", packed, 40, "B"),
        _at_most("bytes a call in run.json", written / number, 100, "B"),
    ]


def bytes_at_rest(num_calls: int = 20_000, calls_per_step: int = 20) -> list[Result]:
    """Measure the bytes per call of a long run, whose call sites and facts hardly count."""
    tensor = torch.ones(4)
    with commtrace.record(detail="collective") as recording:
        for number in range(num_calls):
            dist.all_reduce(tensor)
            if number % calls_per_step == calls_per_step - 1:
                recording.step()
    (spool,) = recording._output.buffer.contents()
    with tempfile.TemporaryDirectory() as folder:
        written = recording.save(Path(folder) / "run.json").stat().st_size
    return [
        _at_most(f"bytes a call in a spool of {num_calls:,}", len(spool) / num_calls, 20, "B"),
        _at_most(f"bytes a call in a run.json of {num_calls:,}", written / num_calls, 20, "B"),
    ]


def writer_speed(num_calls: int = 200_000, batch: int = 20_000) -> Result:
    """Measure the calls per second of the spool writer, from what the program has left behind."""
    tensor = torch.ones(4)
    seconds = 0.0
    with commtrace.record(detail="collective") as recording:
        buffer = recording._output.buffer
        flush, buffer.flush = buffer.flush, _later  # type: ignore[method-assign]
        for _ in range(num_calls // batch):
            for _ in range(batch):
                dist.all_reduce(tensor)
            begin = time.process_time()
            flush()
            seconds += time.process_time() - begin
        buffer.flush = flush  # type: ignore[method-assign]
    speed = num_calls / seconds
    name, bar = "calls a second through the writer", 200_000
    return Result(name, ("", "", f"{speed:,.0f}"), f"{bar:,}", speed >= bar)


def _later(*_: object, **__: object) -> None:
    """Replace the background flush, so that the timed flush writes all events."""


def growth(num_calls: int = 1_000_000) -> Result:
    """Measure the growth of the process while a million calls are recorded into a file."""
    tensor = torch.ones(4)
    with (
        tempfile.TemporaryDirectory() as folder,
        commtrace.record(Path(folder) / "run.json", detail="collective"),
    ):
        for _ in range(num_calls // 10):  # one-time allocations
            dist.all_reduce(tensor)
        before = resident_bytes()
        for _ in range(num_calls):
            dist.all_reduce(tensor)
        grown = resident_bytes() - before
    limit = 16_000_000
    cells = ("", "", text_of_bytes(max(grown, 0)))
    return Result("memory after a million calls more", cells, text_of_bytes(limit), grown <= limit)


def _at_most(name: str, figure: float, bar: float, unit: str) -> Result:
    return Result(name, ("", "", f"{figure:.0f} {unit}"), f"{bar:.0f} {unit}", figure <= bar)


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recording", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="of a step; default: 40")
    parser.add_argument("--check", action="store_true", help="end with code 1 if a bar is missed")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with fake_ranks():
        results = [recorded_step(*step, rounds=given.rounds) for step in STEPS]
        results += [recorded_opcodes(*each) for each in OPCODES]
        for name, call, bar in CALLS:
            results.append(opcodes_of_a_call(name, call, bar))
            results.append(time_of_a_call(name, call, given.rounds))
        results += [*beginning_and_end(), *bytes_of_a_call(), *bytes_at_rest()]
        results += [writer_speed(), growth()]
    table = Table(title=f"recording, on one core, rank 0 of {RANKS}, torch {torch.__version__}")
    for heading in ("what", "without", "with", "ratio", "bar", "verdict"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    verdicts = {None: "", True: "ok", False: "missed"}
    for each in results:
        table.add_row(each.name, *each.cells, each.bar, verdicts[each.kept])
    Console(width=None if sys.stdout.isatty() else PIPED_WIDTH).print(table)
    if given.check and any(each.kept is False for each in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
