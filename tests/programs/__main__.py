"""`python -m tests.programs [--count N]`: random programs on a mesh against a single device.

Prints the composition of the programs, by family of rules and by operator of torch's database, and
each failure, shrunk, as a script that can be run. Exits with 1 if any program fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.programs.database import operators
from tests.programs.generate import OWN
from tests.programs.parts import tallies
from tests.programs.tally import Tally

_CHUNK = 5
# Operators that are used less often are listed, with the reason.
_RARE = 5


def main() -> int:
    """Run the programs that the command line asks for; returns 1 if any fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=20_000, help="how many programs")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    start, total = time.time(), Tally()
    seeds = range(options.start, options.start + options.count)
    chunks = [seeds[n : n + _CHUNK] for n in range(0, len(seeds), _CHUNK)]
    for number, tally in enumerate(tallies(chunks, options.processes), 1):
        total += tally
        for seed, text, script in tally.failures:
            print(f"---- seed {seed}: {text}\n\n{script}\n", flush=True)
        if number % 20 == 0:
            reported = f"{total.programs} programs, {len(total.failures)} failures"
            print(f"{reported}, {time.time() - start:.0f} s", file=sys.stderr, flush=True)
    print("\n".join(summary(total)))
    print(f"{time.time() - start:.0f} s")
    return 1 if total.failures else 0


def summary(tally: Tally) -> Iterator[str]:
    """Yield the lines of the summary of a run."""
    yield (
        f"{tally.programs} programs of {tally.statements} statements, {tally.differentiated} with "
        f"gradients, {tally.raising} statements that one device refuses; "
        f"{len(tally.failures)} failures"
    )
    yield "operators run, by family of rules: " + _listed(tally.families)
    yield "given tensors: " + _listed(tally.layouts)
    if tally.unstable:
        yield f"not compared, since rounding alone moves a result as far: {tally.unstable}"
    if tally.left_out:
        yield "statements left out: " + _listed(tally.left_out)
    used = Counter({name: tally.operators[name] for name in operators()})
    rare = sorted((count, name) for name, count in used.items() if count < _RARE)
    yield (
        f"{len(used)} operators of torch's database, {len(used) - len(rare)} of them "
        f"{_RARE} times or more, the median one {sorted(used.values())[len(used) // 2]} times"
    )
    for count, name in rare if tally.programs >= 20 * len(used) // OWN else ():
        reasons = Counter({r: n for (each, r), n in tally.refused.items() if each == name})
        reported = "; ".join(f"{reason} ({n})" for reason, n in reasons.most_common(3))
        yield f"  {name}: {count} times; {reported}"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common() if count)


if __name__ == "__main__":
    sys.exit(main())
