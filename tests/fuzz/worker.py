"""Worker of the fuzzer: reads case numbers, examines the cases, writes a line of JSON per outcome.

    python -m tests.fuzz.worker SEED MEMORY_BYTES < numbers

It announces each case before it begins, so that the reader knows which case crashed or hung it.
"""

from __future__ import annotations

import json
import resource
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.cases import Case
from tests.fuzz.examine import examine


def main() -> None:
    """Examine the cases whose numbers are read from stdin."""
    seed, memory = int(sys.argv[1]), int(sys.argv[2])
    limit = _mapped_bytes() + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    out = sys.stdout
    for line in sys.stdin:
        case = Case(seed, int(line))
        print(json.dumps({"begins": case.number}), file=out, flush=True)
        with TemporaryDirectory(prefix="fuzz-") as folder:
            outcomes = examine(case, Path(folder))
        print(json.dumps({"outcomes": [each.row() for each in outcomes]}), file=out, flush=True)


def _mapped_bytes() -> int:
    """Address space of the loaded modules; a torch for GPUs maps gigabytes of libraries."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
