"""Predictions of `commtrace whatif`, checked by making the change; and the replay's own figures.

python -m benchmarks.whatif                   all parts
python -m benchmarks.whatif claims --rounds 5
python -m benchmarks.whatif claims --keep build/whatif    leaves the recordings there
python -m benchmarks.whatif claims --of build/whatif      only reads them
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.whatif.claims import CLAIMS
from benchmarks.whatif.healthy import MOST_PROMISED, promises, record_models
from benchmarks.whatif.predicted import MOST_ERROR, TIMES_NOISE, Checked, checked
from benchmarks.whatif.recorded import record_claims
from benchmarks.whatif.residuals import NAMES, residuals
from benchmarks.whatif.speed import speeds
from benchmarks.whatif.unchanged import record_programs, replays
from commtrace.units import text_of_duration

PIPED_WIDTH = 130
_PRIORITY = 1


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let processes that the body starts come before all others, if the system permits it.

    The programs mostly sleep, so that others hardly notice.
    """
    try:
        before = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    except (AttributeError, PermissionError):
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


def _table(title: str, *headings: str, num_left: int = 1) -> Table:
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < num_left else "right")
    return table


def _verdict(is_kept: bool) -> str:
    return "ok" if is_kept else "missed"


def check_claims(console: Console, folder: Path, given: argparse.Namespace) -> bool:
    """Record and check the claims; True if the median error and the order are as they should be."""
    claims = [claim for claim in CLAIMS if given.program in (None, claim.program)]
    if given.of is None:
        with undisturbed():
            record_claims(claims, folder, given.rounds)
    found = [checked(claim, folder, given.rounds) for claim in claims]
    table = _table(
        "predicted and measured step times",
        "cost", "change", "with it", "predicted", "measured", "error", "noise", "naive", "",
        num_left=2,
    )  # fmt: skip
    for each in found:
        table.add_row(*_cells(each))
    console.print(table)
    error, naive = (
        statistics.median(getattr(each, name) for each in found)
        for name in ("error", "naive_error")
    )
    noise = statistics.median(each.noise for each in found)
    is_kept = error <= max(MOST_ERROR, TIMES_NOISE * noise)
    console.print(
        f"median error {error:.1%}, of the naive estimate {naive:.1%}: {_verdict(is_kept)}; "
        f"{sum(each.is_kept for each in found)} of {len(found)} within {MOST_ERROR:.0%} "
        f"or {TIMES_NOISE:g} times the noise"
    )
    _print_residuals(console, found, folder)
    return is_kept & _check_order(console, found)


def _cells(each: Checked) -> list[str]:
    median = statistics.median
    least, most = (text_of_duration(median(times)) for times in (each.least, each.most))
    return [
        each.claim.name, "; ".join(each.claim.changes), text_of_duration(median(each.before)),
        least if least == most else f"{least} to {most}", text_of_duration(each.measured),
        f"{each.error:.1%}", f"{each.noise:.1%}", f"{each.naive_error:.1%}", _verdict(each.is_kept),
    ]  # fmt: skip


def _check_order(console: Console, found: Sequence[Checked]) -> bool:
    """Compare the order of the savings of a program with several costs."""
    median = statistics.median
    together = [each for each in found if len(each.claim.before) > 1]
    if not together:
        return True
    predicted = sorted(together, key=lambda each: median(each.most))
    measured = sorted(together, key=lambda each: each.measured)
    is_kept = [each.claim for each in predicted] == [each.claim for each in measured]
    names = ", ".join(each.claim.cost for each in predicted)
    console.print(
        f"order of savings of a program with {len(together)} costs: {names}: {_verdict(is_kept)}"
    )
    return is_kept


def _print_residuals(console: Console, found: Sequence[Checked], folder: Path) -> None:
    """Print the causes of wrong predictions; median and largest of each as parts of the step."""
    table = _table("predicted minus measured, per step on the critical path", "cost", *NAMES)
    parts: dict[str, list[float]] = {name: [] for name in NAMES}
    for each in found:
        own = residuals(each.claim, folder)
        table.add_row(each.claim.name, *(f"{own[name] / 1e6:+.2f} ms" for name in NAMES))
        if each.least == each.most:
            for name in NAMES:
                parts[name].append(abs(own[name]) / each.measured)
    for title, of in (("median but for ranges", statistics.median), ("largest", max)):
        table.add_row(title, *(f"{of(parts[name] or [0.0]):.2%}" for name in NAMES))
    console.print(table)


def check_unchanged(console: Console, folder: Path, given: argparse.Namespace) -> bool:
    """Replay recorded programs without a change."""
    if given.of is None:
        record_programs(folder)
    table = _table(
        "replay without a change",
        *("program", "ranks", "calls", "step", "waits", "worst", "inferred", ""),
    )
    found = list(replays(folder, given.trace))
    for each in found:
        table.add_row(
            each.name, str(each.num_ranks), f"{each.num_calls:,}", f"{each.step:.2%}",
            f"{each.wait:.2%}", each.worst if each.wait else "", f"{each.inferred:.1%}",
            _verdict(each.is_kept),
        )  # fmt: skip
    console.print(table)
    return all(each.is_kept for each in found)


def check_speed(console: Console, folder: Path, given: argparse.Namespace) -> bool:
    """Measure the replay of a large run."""
    table = _table("speed, on one core", "", "measured", "bar", "")
    found = list(speeds(folder, given.calls))
    for each in found:
        table.add_row(
            each.name,
            each.measured,
            each.bar,
            "" if each.is_kept is None else _verdict(each.is_kept),
        )
    console.print(table)
    return all(each.is_kept is not False for each in found)


def check_healthy(console: Console, folder: Path, given: argparse.Namespace) -> bool:
    """List what is promised for programs that have nothing to mend."""
    if given.of is None:
        with undisturbed():
            record_models(folder)
    table = _table(
        "changes of healthy programs that save more", "program", "change", "saves", num_left=2
    )
    found = list(promises(folder))
    for each in found:
        table.add_row(each.program, each.change, f"{each.share:.1%}")
    console.print(table)
    console.print(
        f"{len(found)} changes that save more than {MOST_PROMISED:.0%}: {_verdict(not found)}"
    )
    return not found


PARTS = {
    "claims": check_claims,
    "unchanged": check_unchanged,
    "speed": check_speed,
    "healthy": check_healthy,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts of the benchmark that were asked for."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.whatif", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all"
    )
    parser.add_argument("--program", help="check the claims of this program only")
    parser.add_argument(
        "--rounds", type=int, default=3, help="recordings of each program; default: 3"
    )
    parser.add_argument("--calls", type=int, default=1_000_000, help="calls of the large run")
    parser.add_argument("--keep", type=Path, help="a folder for the recordings")
    parser.add_argument(
        "--of", type=Path, help="a folder with recordings, of which nothing is recorded"
    )
    parser.add_argument(
        "--trace", type=Path, nargs="*", default=[],
        help="files of other tools, or a folder with those of a run, to replay without a change",
    )  # fmt: skip
    parser.add_argument("--check", action="store_true", help="end with code 1 if a bar is missed")
    given = parser.parse_args(argv)
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    kept = given.of or given.keep
    with nullcontext(kept) if kept else tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        results = [PARTS[part](console, path, given) for part in given.parts or PARTS]
    return 1 if given.check and not all(results) else 0


if __name__ == "__main__":
    sys.exit(main())
