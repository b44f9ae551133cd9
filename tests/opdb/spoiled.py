"""`python -m tests.opdb.spoiled`: calls that torch refuses, on DTensors in several layouts.

A call that is refused must be refused on all ranks alike, before anything was sent: ranks that go
on would wait for the others. One argument of a sample of torch's operator database is spoiled
(`spoilings`). If torch raises, DTensors are called in the same way, whose shards are even, uneven
or empty, on 4 ranks that are threads. Each call has one of the outcomes

    alike      all ranks raise, with the same text, and have sent nothing
    sent       all ranks raise, with the same text, after the same collectives
    accepted   no rank raises
    values     the ranks differ, but torch accepts the call for zeros or for ones: each rank can
               judge only the numbers that it holds
    parted     some ranks raise, or with another text, or have sent something else
    hangs      a rank waits for others, in the call or in a collective behind it
    crashes    the process ends

Each operator is called in a forked process, which is replaced behind a call that ends it. Calls
that hang or end the process with plain tensors are left out and counted. Exits with 1 if calls
part, hang or crash.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from dtensor_core import missing_rule
from dtensor_core.testing import RankFailure, kept_mesh, run_threads, threads
from dtensor_core.testing.thread_group import ThreadGroup
from tests.opdb.cases import Case, cases
from tests.opdb.layouts import Layouts, laid_out, layouts_of
from tests.opdb.parts import database
from tests.opdb.runs import Run
from tests.opdb.spoilings import spoilings

ALIKE, SENT, ACCEPTED, VALUES = "alike", "sent", "accepted", "values"
PARTED, HANGS, CRASHES = BAD = "parted", "hangs", "crashes"
LEFT_OUT = "left out"
# Even, uneven and empty shards: torch's sizes are 20, 10, 5 and 3.
RUN = Run(name="spoiled", uneven=True, partials=("sum",))
DEADLINE_S = 20

# Number of a spoiled call, and of its turn: 0 with plain tensors, then one for each layout.
Place = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most samples of an operator, spoilings of a sample, and layouts of a spoiled call."""

    samples: int
    spoilings: int
    layouts: int


@dataclass
class Outcomes:
    """Outcomes of the spoiled calls of an operator, and texts of those that are not alike."""

    counts: Counter[str] = field(default_factory=Counter)
    texts: list[tuple[str, str]] = field(default_factory=list)

    def note(self, outcome: str, text: str) -> None:
        """Count an outcome."""
        self.counts[outcome] += 1
        if outcome != ALIKE:
            self.texts.append((outcome, text.replace("\n", " / ")))


@dataclass(frozen=True)
class Attempt:
    """The error that a rank raised, if any, and the kinds of the collectives that it began."""

    error: str | None
    sent: tuple[str, ...]


def outcomes(info: Any, limits: Limits) -> Outcomes:
    """Call an operator with spoiled arguments, in processes of its own."""
    found = Outcomes()
    begin: Place | None = (0, 0)
    while begin is not None:
        begin = _from(begin, info, limits, found)
    return found


def _from(begin: Place, info: Any, limits: Limits, found: Outcomes) -> Place | None:
    """Make the calls from a place on; returns where to go on if a call has ended the process."""
    context = get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_send_outcomes, args=(there, begin, info, limits))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside other threads
        child.start()
    there.close()
    place, text, lost, why = begin, "", HANGS, f"longer than {2 * DEADLINE_S} s"
    try:
        while here.poll(2 * DEADLINE_S):
            told = here.recv()
            if told is None:
                return None
            if isinstance(told[0], str):
                found.note(told[0], f"{text}: {told[1]}")
            else:
                place, text = told
    except EOFError:
        child.join()
        lost, why = CRASHES, f"exit code {child.exitcode}"
    finally:
        child.kill()
        child.join()
        here.close()
    number, turn = place
    found.note(lost if turn else LEFT_OUT, f"{text}: {why}")
    return (number, turn + 1) if turn else (number + 1, 0)


def _send_outcomes(pipe: Any, begin: Place, info: Any, limits: Limits) -> None:
    """Send the place and text of each call before it, and its outcome; then None."""
    for stream in (1, 2):  # libraries of linear algebra print there
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    torch.set_num_threads(1)
    with (
        warnings.catch_warnings(),
        patch.object(torch, "manual_seed", torch.default_generator.manual_seed),
        patch.dict(threads._pools, clear=True),  # their threads are the parent's
        missing_rule("replicate"),
    ):
        warnings.simplefilter("ignore")
        for number, (case, name, leaves) in enumerate(_spoiled_cases(info, limits)):
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            tried = layouts_of(tensors, RUN, random.Random(number), limits.layouts)
            for turn, layout in enumerate((None, *tried)):
                if (number, turn) < begin:
                    continue
                pipe.send(((number, turn), _text(case, name, layout)))
                if layout is not None:
                    pipe.send(outcome(case, leaves, layout))
                elif not _is_refused(case, leaves):
                    break
    pipe.send(None)


def _spoiled_cases(info: Any, limits: Limits) -> Iterator[tuple[Case, str, list[Any]]]:
    for case in cases(info, RUN, limits.samples):
        found = [
            (name, leaves)
            for name, leaves in spoilings(case.leaves)
            if any(isinstance(leaf, torch.Tensor) for leaf in leaves)
        ]
        for each in random.Random(0).sample(found, min(limits.spoilings, len(found))):
            yield case, *each


def _text(case: Case, name: str, layout: Layouts | None) -> str:
    shapes = [tuple(each.shape) for each in case.tensors]
    placements = [" ".join(map(str, each)) for each in layout or ()]
    return f"{shapes} {case.text} {name} {placements}"


def _is_refused(case: Case, leaves: list[Any]) -> bool:
    """True if torch raises."""
    try:
        _run(case, leaves, torch.clone)
    except Exception:
        return True
    return False


def _run(case: Case, leaves: list[Any], make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Call torch with tensors that `make` makes of the leaves' tensors."""
    made = [make(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    case.run(*case.arguments(made), 0)


def outcome(case: Case, leaves: list[Any], layout: Layouts) -> tuple[str, str]:
    """Make a call on all ranks, and a collective behind it; return the outcome and its text."""
    found, text = _made(case, leaves, layout)
    if found in (PARTED, HANGS):
        found = found if _is_about_metadata(case, leaves) else VALUES
    return found, text


def _is_about_metadata(case: Case, leaves: list[Any]) -> bool:
    """True if torch refuses a call for zeros and for ones, and not for want of a solution."""
    for make in (torch.zeros_like, torch.ones_like):
        try:
            _run(case, leaves, make)
        except torch.linalg.LinAlgError:
            return False
        except Exception:
            continue
        return False
    return True


def _made(case: Case, leaves: list[Any], layout: Layouts) -> tuple[str, str]:
    begun: dict[int, list[str]] = {}
    join = ThreadGroup._join

    def noted(group: ThreadGroup, kind: str, *args: Any) -> Any:
        begun.setdefault(group.global_rank, []).append(kind)
        return join(group, kind, *args)

    def body() -> Attempt:
        mesh, numbers = kept_mesh(RUN.mesh), iter(layout)
        made = [
            laid_out(leaf, mesh, next(numbers)) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in leaves
        ]
        sent = begun.setdefault(dist.get_rank(), [])
        sent.clear()
        error = None
        try:
            case.run(*case.arguments(made), 0)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        attempt = Attempt(error, tuple(sent))
        dist.all_reduce(torch.ones(1))
        return attempt

    with patch.object(ThreadGroup, "_join", noted):
        try:
            attempts = run_threads(body, torch.Size(RUN.mesh).numel(), timeout_s=DEADLINE_S)
        except RankFailure as failure:
            return HANGS, str(failure)[:1500]
    return judged(attempts)


def judged(attempts: Sequence[Attempt]) -> tuple[str, str]:
    """Return the outcome of a call by what its ranks did, and its text."""
    first = attempts[0]
    if any(each != first for each in attempts):
        text = " | ".join(f"{each.error} {each.sent}"[:300] for each in attempts)
        return PARTED, text
    if first.error is None:
        return ACCEPTED, ""
    return SENT if first.sent else ALIKE, f"{first.error} {first.sent or ''}"


def line(found: Sequence[Outcomes]) -> str:
    """Format the summary of operators."""
    counts = sum((each.counts for each in found), Counter[str]())
    left_out = counts.pop(LEFT_OUT, 0)
    kinds = (ALIKE, SENT, ACCEPTED, VALUES, *BAD)
    return (
        f"{len(found)} operators, {counts.total()} calls that torch refuses: "
        + ", ".join(f"{counts[kind]} {kind}" for kind in kinds)
        + f"; {left_out} end torch itself"
    )


def main() -> int:
    """Scan the operators that the command line selects; returns 1 if ranks were out of step."""
    parser = argparse.ArgumentParser(description="Call DTensors as torch refuses to be called.")
    parser.add_argument("--only", default="", help="names of operators, separated by commas")
    parser.add_argument("--samples", type=int, default=3, help="samples an operator")
    parser.add_argument("--spoilings", type=int, default=12, help="spoiled calls a sample")
    parser.add_argument("--layouts", type=int, default=4, help="layouts a spoiled call")
    parser.add_argument("--json", type=Path, help="where to write every operator's outcomes")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    limits = Limits(samples=options.samples, spoilings=options.spoilings, layouts=options.layouts)
    wanted = set(filter(None, options.only.split(",")))
    start = time.time()
    found: dict[str, Outcomes] = {}
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        tasks = [
            pool.submit(_of_number, number, limits)
            for number, info in enumerate(database())
            if (not wanted or info.name in wanted) and RUN.dtype in info.supported_dtypes("cpu")
        ]
        for task in as_completed(tasks):
            name, made = task.result()
            found[name] = made
            for kind, text in made.texts:
                if kind in BAD:
                    print(f"{kind}: {name}: {text[:400]}", flush=True)
    print(f"{line(list(found.values()))} ({time.time() - start:.0f} s)")
    if options.json:
        report = {name: [each.counts, each.texts] for name, each in sorted(found.items())}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1))
    return int(any(each.counts[kind] for each in found.values() for kind in BAD))


def _of_number(number: int, limits: Limits) -> tuple[str, Outcomes]:
    """Scan an operator of the database, in a process of the pool."""
    info = database()[number]
    return f"{info.name} {info.variant_test_name}".strip(), outcomes(info, limits)


if __name__ == "__main__":
    sys.exit(main())
