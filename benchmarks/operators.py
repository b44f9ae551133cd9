"""Communication of torch's operator database on dtensor_core and on torch's DTensor.

Every operator runs on 4 ranks that are threads, with every layout that `tests.opdb` tries, once on
dtensor_core's tensors and once on torch's. Compared are the combinations that torch's DTensor gets
right: calls, elements and bytes that were sent, and results that are sharded. Results are right if
they equal the results of full tensors.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.testing._internal.common_methods_invocations import op_db

from benchmarks.counting import Counter, Sent, counter
from benchmarks.kit import OURS, RANKS, TORCHS, Kit, kits
from dtensor_core.placement import Placement
from dtensor_core.testing import RankFailure, kept_mesh, run_threads
from tests.opdb.cases import Case, cases
from tests.opdb.layouts import laid_out, layouts_of
from tests.opdb.runs import RUNS, Run
from tests.opdb.scan import PASS, Tally, judged

Layouts = Sequence[Sequence[Placement]]
PIPED_WIDTH = 120
PROGRESS = Console(stderr=True)
# Operators per task of the pool.
CHUNK = 6
# Short, because torch's DTensor hangs on some combinations.
TIMEOUT_S = 5.0
VERDICTS = {True: "ok", False: "missed", None: ""}
# Percentage of right combinations with a sharded argument that send nothing with torch's DTensor.
SILENT_PER_CENT = 55


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a combination with a DTensor.

    Attributes:
        passes: True if the result is right on every rank.
        sent: Collectives of rank 0; elements and wire bytes of all ranks.
        sharded: Number of results that are sharded.
    """

    passes: bool
    sent: Sent = field(default_factory=Sent)
    sharded: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """Outcomes of a combination with both DTensors."""

    operator: str
    text: str
    sharded: bool
    ours: Outcome
    torchs: Outcome


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure of dtensor_core and of torch.

    Attributes:
        kept: False on a violation of the bar, None if the bar is not enforced.
    """

    name: str
    ours: float
    torchs: float
    kept: bool | None = None

    @property
    def ratio(self) -> float:
        """The figure of dtensor_core relative to torch's."""
        return self.ours / self.torchs if self.torchs else float(self.ours > 0)


def outcome(case: Case, run: Run, layouts: Layouts, kit: Kit, count: Counter) -> Outcome:
    """Run a combination with a DTensor and classify its result."""

    def body() -> Any:
        mesh = kept_mesh(run.mesh)
        each = iter(layouts)
        leaves = [
            laid_out(leaf, mesh, next(each), kit.tensor) if isinstance(leaf, torch.Tensor) else leaf
            for leaf in case.leaves
        ]
        args, kwargs = case.arguments(leaves)
        try:
            with count.counting() as sent:
                result = case.run(args, kwargs, 0)
            sharded = sum(_is_sharded(leaf) for leaf in result)
            return sent, sharded, [_full(leaf) for leaf in result]
        except Exception as error:
            return Sent(), 0, error

    try:
        ranks = run_threads(body, torch.Size(run.mesh).numel(), timeout_s=TIMEOUT_S)
    except RankFailure:
        return Outcome(passes=False)
    passes = judged(case, [result for _, _, result in ranks], Tally(), lambda: False)[0] == PASS
    total = Sent(ranks[0][0].collectives)
    for sent, _, _ in ranks:
        total.add(Sent(0, sent.elements, sent.wire_bytes))
    return Outcome(passes, total, ranks[0][1])


def _is_sharded(leaf: Any) -> bool:
    return any(hasattr(each, "dim") for each in getattr(leaf, "placements", ()))


def _full(leaf: Any) -> Any:
    return leaf.full_tensor().detach() if hasattr(leaf, "full_tensor") else leaf


def pairs(
    info: Any, run: Run, count: Counter, *, samples: int, combinations: int
) -> Iterator[Pair]:
    """Yield the outcomes of every combination of an operator, with both DTensors."""
    name = f"{info.name} {info.variant_test_name}".strip()
    chooser = random.Random(0)
    both = kits()
    for case in cases(info, run, samples):
        shapes = [tuple(tensor.shape) for tensor in case.tensors]
        for layouts in layouts_of(case.tensors, run, chooser, combinations):
            text = " ".join(f"{s}{list(map(str, p))}" for s, p in zip(shapes, layouts, strict=True))
            sharded = any(each.sharded_dim is not None for layout in layouts for each in layout)
            ours, torchs = (outcome(case, run, layouts, both[k], count) for k in (OURS, TORCHS))
            yield Pair(name, f"{text} {case.text}", sharded, ours, torchs)


def compared(
    run: Run, numbers: Sequence[int], samples: int, combinations: int, processes: int
) -> list[Pair]:
    """Compare the operators with the given database indices, spread over processes."""
    parts = [numbers[start : start + CHUNK] for start in range(0, len(numbers), CHUNK)]
    work = partial(_part, run.name, samples, combinations)
    if processes == 1 or len(parts) == 1:
        return [pair for part in parts for pair in work(part)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        done = pool.map(work, parts)
        return [pair for part in track(done, total=len(parts), console=PROGRESS) for pair in part]


def _part(name: str, samples: int, combinations: int, numbers: Sequence[int]) -> list[Pair]:
    torch.set_num_threads(1)
    logging.getLogger("torch").setLevel(logging.ERROR)
    effort = {"samples": samples, "combinations": combinations}
    with warnings.catch_warnings(), counter() as count:
        warnings.simplefilter("ignore")  # from deprecated operators and from generating samples
        return [
            pair for number in numbers for pair in pairs(op_db[number], RUNS[name], count, **effort)
        ]


def bars(found: Sequence[Pair]) -> list[Bar]:
    """Total the figures over combinations that both get right, and the share that sends nothing."""
    shared = [pair for pair in found if pair.torchs.passes and pair.ours.passes]

    def total(figure: Callable[[Outcome], int]) -> tuple[int, int]:
        return sum(figure(p.ours) for p in shared), sum(figure(p.torchs) for p in shared)

    less = {
        "collectives": total(lambda each: each.sent.collectives),
        "elements": total(lambda each: each.sent.elements),
        "wire bytes": total(lambda each: each.sent.wire_bytes),
    }
    made = [Bar(name, *figures, figures[0] <= figures[1]) for name, figures in less.items()]
    results = total(lambda each: each.sharded)
    made.append(Bar("sharded results", *results, results[0] >= results[1]))
    passing = (sum(p.ours.passes for p in found), sum(p.torchs.passes for p in found))
    lost = any(pair.torchs.passes and not pair.ours.passes for pair in found)
    made.append(Bar("right combinations", *passing, not lost))
    ours, torchs = _silent(shared, ours=True), _silent(shared, ours=False)
    made.append(Bar("% of sharded ones that send nothing", ours, torchs, ours >= SILENT_PER_CENT))
    of_all = _silent(found, ours=True), _silent(found, ours=False)
    made.append(Bar("the same of all that each gets right", *of_all))
    return made


def _silent(found: Sequence[Pair], *, ours: bool) -> float:
    """Percentage of right combinations with a sharded argument that send nothing."""
    sharded = [pair.ours if ours else pair.torchs for pair in found if pair.sharded]
    right = [each for each in sharded if each.passes]
    return 100 * sum(not each.sent.collectives for each in right) / max(len(right), 1)


def worse(found: Sequence[Pair]) -> list[tuple[str, int, int, int, str]]:
    """List the operators that send more than torch's or keep less sharded, worst first.

    Returns:
        Rows of (operator, elements, collectives, sharded results, example). The first two numbers
        are
        the excess over torch's, the third is the number of sharded results lost.
    """
    rows: list[tuple[str, int, int, int, str]] = []
    for name, group in itertools.groupby(found, key=lambda pair: pair.operator):
        both = [pair for pair in group if pair.torchs.passes and pair.ours.passes]
        more = [_more(pair) for pair in both]
        elements, collectives, lost = (sum(each[place] for each in more) for place in range(3))
        if elements > 0 or collectives > 0 or lost > 0:
            example = max(both, key=_more).text
            rows.append((name, elements, collectives, lost, example))
    return sorted(rows, key=lambda row: row[1:4], reverse=True)


def _more(pair: Pair) -> tuple[int, int, int]:
    """Excess over torch's in elements and collectives, and the number of sharded results lost."""
    ours, torchs = pair.ours.sent, pair.torchs.sent
    return (
        ours.elements - torchs.elements,
        ours.collectives - torchs.collectives,
        pair.torchs.sharded - pair.ours.sharded,
    )


def main() -> None:
    """Compare the operators that the command line selects."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operators", description=__doc__)
    parser.add_argument("runs", nargs="*", default=["forward"], help=f"of {', '.join(RUNS)}")
    parser.add_argument("--only", default="", help="names of operators, separated by commas")
    parser.add_argument("--samples", type=int, default=6, help="samples an operator; default: 6")
    parser.add_argument(
        "--combinations", type=int, default=10, help="layouts a sample; default: 10"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--worse", type=int, default=40, help="how many operators are named")
    parser.add_argument("--json", type=Path, help="where to write every combination")
    parser.add_argument("--check", action="store_true", help="end with code 1 if a bar is missed")
    given = parser.parse_args()
    wanted = set(filter(None, given.only.split(",")))
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    missed = False
    report = {}
    for run in (RUNS[name] for name in given.runs):
        numbers = [
            number
            for number, info in enumerate(op_db)
            if (not wanted or info.name in wanted) and run.dtype in info.supported_dtypes("cpu")
        ]
        found = compared(run, numbers, given.samples, given.combinations, given.processes)
        report[run.name] = [asdict(pair) for pair in found]
        verdicts = bars(found)
        missed |= any(bar.kept is False for bar in verdicts)
        _print(console, run, verdicts, worse(found)[: given.worse])
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(report))
    if missed and given.check:
        sys.exit(1)


def _print(
    console: Console, run: Run, verdicts: Sequence[Bar], rows: Sequence[tuple[Any, ...]]
) -> None:
    table = Table(title=f"{run.name}, {RANKS} ranks, torch {torch.__version__}")
    for heading in ("what", OURS, TORCHS, "ratio", "verdict"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for bar in verdicts:
        numbers = [f"{number:,.0f}" for number in (bar.ours, bar.torchs)]
        table.add_row(bar.name, *numbers, f"{bar.ratio:.2f}", VERDICTS[bar.kept])
    console.print(table)
    if not rows:
        return
    table = Table(title="operators that send more, or keep less sharded, than with torch")
    for heading in ("operator", "elements", "collectives", "sharded less", "example"):
        table.add_column(heading, justify="left" if heading in ("operator", "example") else "right")
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table)


if __name__ == "__main__":
    main()
