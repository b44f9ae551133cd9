"""`python -m tests.fuzz`: run every reader on corrupted traces, profiles, dumps and baselines.

Cases are distributed to worker processes, which have a memory limit and are replaced after some
hundred cases, after a hang and after a crash. A table counts the commands by outcome;
a defect is reported with the line that repeats its case, and its files are kept. Exits with 1 if
there is any.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.cases import Case
from tests.fuzz.examine import TIME_LIMIT_S, WAITS, Outcome

ROOT = Path(__file__).parents[2]
CASES_PER_WORKER = 150
_GRACE_S = 60


class Worker:
    """A process that examines cases; `lost` is the reason why it ended early."""

    def __init__(self, seed: int, numbers: Sequence[int], memory: int) -> None:
        paths = [str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")]
        variables = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2",
            "COLUMNS": "120",
        }  # fmt: skip
        self._numbers = list(numbers)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker", str(seed), str(memory)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=ROOT, env=os.environ | variables,
        )  # fmt: skip
        self._seed = seed
        self._lines: queue.Queue[str] = queue.Queue()
        self._handlers = ""

    def outcomes(self) -> Iterator[list[Outcome]]:
        """Yield the outcomes of each case in turn, including a crash or a hang."""
        readers = [
            threading.Thread(target=each, daemon=True) for each in (self._read, self._listen)
        ]
        for reader in readers:
            reader.start()
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{number}\n" for number in self._numbers))
        self._process.stdin.close()
        at, num_done = self._numbers[0], 0
        while True:
            try:
                line = self._lines.get(timeout=6 * WAITS * TIME_LIMIT_S + _GRACE_S)
            except queue.Empty:
                self._process.kill()
                yield [self._lost(at, "hang: even the time limit did not end it")]
                break
            if not line:
                code = self._process.wait()
                if num_done < len(self._numbers):
                    yield [self._lost(at, f"crash: the process ended with {code}")]
                break
            reported = json.loads(line)
            if "begins" in reported:
                at = reported["begins"]
            else:
                num_done += 1
                yield [Outcome(**row) for row in reported["outcomes"]]
        self._process.wait()
        for reader in readers:
            reader.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _listen(self) -> None:
        assert self._process.stderr is not None
        self._handlers = self._process.stderr.read()[-3000:]

    def _lost(self, number: int, defect: str) -> Outcome:
        return Outcome(Case(self._seed, number).kind, number, "", "", -1, defect, self._handlers)


def run(seed: int, numbers: Sequence[int], *, jobs: int, memory: int, tell: Any) -> list[Outcome]:
    """Examine the cases with at most `jobs` workers at a time, and return their outcomes."""
    chunks: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    size = max(min(CASES_PER_WORKER, -(-len(numbers) // jobs)), 1)
    for start in range(0, len(numbers), size):
        chunks.put(list(numbers[start : start + size]))
    found: list[Outcome] = []
    lock = threading.Lock()

    def work() -> None:
        while True:
            try:
                chunk = chunks.get_nowait()
            except queue.Empty:
                return
            done = 0
            for outcomes in Worker(seed, chunk, memory).outcomes():
                done += 1
                with lock:
                    found.extend(outcomes)
                    tell(found, outcomes)
            if done < len(chunk):  # after a crash or a hang another worker takes the rest
                chunks.put(chunk[done:])

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def keep(seed: int, outcome: Outcome, folder: Path) -> Path:
    """Write the files of a failed case and its output into a folder of their own."""
    kept = folder / f"{outcome.kind}-{outcome.number}"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    Case(seed, outcome.number).write(kept)
    (kept / "defect.txt").write_text(
        f"{again(seed, outcome)}\ncommtrace {outcome.arguments}\n{outcome.defect}\n\n"
        f"{outcome.reported.encode('utf-8', 'replace').decode()}",
        encoding="utf-8",
    )
    return kept


def again(seed: int, outcome: Outcome) -> str:
    """Return the command line that runs a case again."""
    return f"python -m tests.fuzz --seed {seed} --only {outcome.number}"


def summary(found: Sequence[Outcome]) -> list[str]:
    """Format the number of commands by outcome, for each kind of input and each command."""
    lines = []
    for title, name in (("kind", "kind"), ("command", "command")):
        lines.append(
            f"{title:>12} {'inputs':>8} {'runs':>8} {'read':>8} {'refused':>8} {'defects':>8}"
        )
        for value in sorted({getattr(each, name) for each in found}):
            of = [each for each in found if getattr(each, name) == value]
            defects = sum(bool(each.defect) for each in of)
            refused = sum(each.code in (2, 3) and not each.defect for each in of)
            numbers = len({each.number for each in of}), len(of), len(of) - refused - defects
            lines.append(f"{value or 'worker':>12} {numbers[0]:8,} {numbers[1]:8,} {numbers[2]:8,} "
                         f"{refused:8,} {defects:8,}")  # fmt: skip
    codes = Counter(each.code for each in found)
    lines.append(
        "exit codes: " + ", ".join(f"{code}: {num:,}" for code, num in sorted(codes.items()))
    )
    unforeseen = sum("at: the reader's " in each.reported for each in found)
    lines.append(
        f"refused by the boundary alone, where no reader foresaw the values: {unforeseen:,}"
    )
    return lines


def main() -> int:
    """Examine the cases that the command line selects; returns 1 if there is a defect."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="numbers of cases, separated by commas")
    parser.add_argument("--jobs", type=int, default=2, help="workers at a time")
    parser.add_argument("--memory", type=float, default=2.0, help="GiB that a worker may take")
    parser.add_argument("--json", type=Path, help="a file for all outcomes")
    parser.add_argument("--failures", type=Path, default=Path("build/fuzz"))
    given = parser.parse_args()
    numbers = list(range(given.first, given.first + given.cases))
    if given.only:
        numbers = [int(number) for number in given.only.split(",")]
    began = time.monotonic()

    def tell(found: list[Outcome], news: list[Outcome]) -> None:
        for each in news:
            if each.defect:
                print(f"{each.kind} {each.number}: {each.defect}  [{each.arguments}]", flush=True)
        num = len({each.number for each in found})
        if num % 500 == 0:
            print(f"{num:,} inputs, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    memory = int(given.memory * (1 << 30))
    found = run(given.seed, numbers, jobs=given.jobs, memory=memory, tell=tell)
    defects = [each for each in found if each.defect]
    for outcome in defects:
        keep(given.seed, outcome, given.failures)
    print("\n".join(summary(found)))
    seconds = time.monotonic() - began
    print(
        f"{len(numbers):,} inputs, {len(found):,} runs, {len(defects):,} defects, {seconds:.0f} s"
    )
    if defects:
        print(f"files of each are in {given.failures}; once more: {again(given.seed, defects[0])}")
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps([each.row() for each in found]))
    return bool(defects)


if __name__ == "__main__":
    sys.exit(main())
