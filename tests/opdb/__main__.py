"""`python -m tests.opdb [run ...]`: a line per run, and a JSON with every operator's outcomes."""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from torch.testing._internal.common_methods_invocations import op_db

from tests.opdb.runs import RUNS, Run
from tests.opdb.scan import Tally, scan


def main() -> None:
    """Scan what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", default=list(RUNS), help=", ".join(RUNS))
    parser.add_argument("--only", default="", help="names of operators, separated by commas")
    parser.add_argument("--samples", type=int, default=6, help="samples an operator")
    parser.add_argument("--combinations", type=int, default=10, help="layouts a sample")
    parser.add_argument("--json", type=Path, help="where to write every operator's outcomes")
    parser.add_argument("--part", default="0/1", help="i/n: every n-th operator from the i-th on")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    part, parts = map(int, options.part.split("/"))
    wanted = set(filter(None, options.only.split(",")))
    infos = [info for info in op_db if not wanted or info.name in wanted][part::parts]
    report: dict[str, Any] = {}
    for name in options.runs:
        start = time.time()
        run = RUNS[name]
        tallies = {
            f"{info.name} {info.variant_test_name}".strip(): scan(
                info, run, samples=options.samples, combinations=options.combinations
            )
            for info in infos
            if run.dtype in info.supported_dtypes("cpu")
        }
        print(_line(run, tallies), f"{time.time() - start:.0f} s", flush=True)
        report[name] = {
            key: {
                "outcomes": tally.outcomes,
                "failures": tally.failures,
                "missing": sorted(tally.missing),
            }
            for key, tally in tallies.items()
        }
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(report, indent=1))


def _line(run: Run, tallies: dict[str, Tally]) -> str:
    verdicts = Counter(tally.verdict for tally in tallies.values())
    outcomes = sum((tally.outcomes for tally in tallies.values()), Counter[str]())
    return f"{run.name}: operators {dict(verdicts)}, combinations {dict(outcomes)}"


if __name__ == "__main__":
    main()
