"""`python -m tests.opdb [run ...]`: a line per run, and a JSON with every operator's outcomes.

Up to `--samples` samples of every operator are laid out in up to `--combinations` ways each, on 4
ranks that are threads; the operators are spread over the machine's cores. A line reads

    forward: 644 operators pass in all that was tried, 0 in some, 0 in none, 33 untried;
    5578 combinations: 5578 pass, 0 wrong values, 0 desynchronised, 0 errors;
    4 pass within rounding only

An operator is untried if none of its samples has a tensor, or if it lacks the variant of the run. A
combination is a call in a layout. A refused call raises an error that is expected of DTensors,
see `refusals`. A combination that passes within rounding only exceeds the OpInfo's tolerance, but
not the rounding error of torch's own result, see `judge`. Samples that are sparse, nested or
quantised, have no tensor, or fail in torch itself are left out and counted. Exits with 1 if values
are wrong, ranks desynchronised, a hang was found or an error is not expected.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.opdb.parts import tallies_of
from tests.opdb.runs import RUNS, Run
from tests.opdb.scan import BAD, DESYNC, ERROR, PASS, REFUSED, WRONG, Tally


def main() -> int:
    """Run the scans that the command line selects; returns 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="*", default=list(RUNS), help=", ".join(RUNS))
    parser.add_argument("--only", default="", help="names of operators, separated by commas")
    parser.add_argument("--samples", type=int, default=8, help="samples an operator")
    parser.add_argument("--combinations", type=int, default=10, help="layouts a sample")
    parser.add_argument("--json", type=Path, help="where to write every operator's outcomes")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    start = time.time()
    print(
        f"{options.samples} samples an operator, {options.combinations} layouts a sample",
        flush=True,
    )
    wanted = set(filter(None, options.only.split(",")))
    report: dict[str, Any] = {}
    bad = 0
    for name, tallies, seconds in tallies_of(
        options.runs, wanted, options.samples, options.combinations, options.processes
    ):
        print(line(RUNS[name], tallies), f"({seconds:.0f} s)", flush=True)
        bad += sum(tally.outcomes[kind] for tally in tallies.values() for kind in BAD)
        report[name] = {key: _as_json(tally) for key, tally in sorted(tallies.items())}
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(report, indent=1))
    print(f"{'WRONG' if bad else 'nothing wrong'}, in {time.time() - start:.0f} s")
    return 1 if bad else 0


def line(run: Run, tallies: dict[str, Tally]) -> str:
    """Format the summary line of a run."""
    verdicts = Counter(tally.verdict for tally in tallies.values())
    outcomes = sum((tally.outcomes for tally in tallies.values()), Counter[str]())
    reasons = sum((tally.reasons for tally in tallies.values()), Counter[str]())
    refusals = sum((tally.refusals for tally in tallies.values()), Counter[str]())
    left_out = sum((tally.left_out for tally in tallies.values()), Counter[str]())
    text = (
        f"{run.name}: {verdicts['all']} operators pass in all that was tried, {verdicts['some']} "
        f"in some, {verdicts['none']} in none, {verdicts['untried']} untried; "
        f"{sum(outcomes.values())} combinations: "
        + ", ".join(f"{outcomes[kind]} {kind}" for kind in (PASS, WRONG, DESYNC, REFUSED, ERROR))
        + f"; {sum(tally.rounded for tally in tallies.values())} pass within rounding only"
    )
    for title, counts in (
        ("errors", reasons),
        ("refused", refusals),
        ("samples left out", left_out),
    ):
        if counts:
            text += f"; {title}: " + ", ".join(f"{n} {why}" for why, n in counts.most_common())
    return text


def _as_json(tally: Tally) -> dict[str, Any]:
    return {
        "verdict": tally.verdict,
        "combinations": tally.outcomes,
        "within rounding only": tally.rounded,
        "failures": tally.failures,
        "refused": tally.refusals,
        "samples left out": tally.left_out,
        "operators without a rule": sorted(tally.missing),
    }


if __name__ == "__main__":
    sys.exit(main())
