"""Score of `commtrace check`, and of the alarm, on programs whose authors had read the docs only.

    python -m tests.hangs.score                      all programs of `held_out`, 20 to 30 minutes
    python -m tests.hangs.score h01 h05 --parallel 2
    python -m tests.hangs.score --detail collective  without operators; `dumps`: gloo's dumps alone

Each program is run on gloo ranks with a time-out and watched meanwhile. Its answer was written
before it was run: who did something else, its line, where others wait, and the branch. It is

    right     the blamed ranks, both lines and the branch, if any, are named
    either    likewise, but the branch is one of two statements that are named
    half      the blamed ranks are right, or in doubt
    missed    there is no fault, or no recording
    wrong     a fault blames other ranks without a doubt

A healthy program has no fault and no alarm. The exit code is 1 if any blames wrongly.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from commtrace.analyze import Frames, load
from commtrace.analyze.consistency import consistency
from commtrace.analyze.divergence import divergences, first_verdict, of_fault
from commtrace.importers import import_trace
from commtrace.tracefile import read_trace

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("held_out")
RIGHT, EITHER, HALF, MISSED, WRONG = "right", "either", "half", "missed", "wrong"
DUMPS = "dumps"
_COMMTRACE = [sys.executable, "-m", "commtrace_cli"]
_ENDS_AFTER_S = 400


def answers(names: list[str]) -> list[dict[str, Any]]:
    """Answers of the programs whose folders begin with any of some names; of all without names."""
    known = json.loads((PROGRAMS / "answers.json").read_text("utf-8"))
    return [each for each in known if not names or each["file"].startswith(tuple(names))]


def _copied(answer: dict[str, Any], folder: Path) -> Path:
    """Copy of a program, which may write into its folder."""
    program = PROGRAMS / answer["file"]
    made = folder / "programs" / program.parent.name
    shutil.copytree(program.parent, made, dirs_exist_ok=True)
    return made / program.name


def recorded(
    answer: dict[str, Any], folder: Path, *, timeout_s: int, detail: str = "op"
) -> tuple[Path, str]:
    """Run of a program, and the ranks that the alarm named; `-` without an alarm."""
    program = _copied(answer, folder)
    path = folder / f"{program.parent.name}.json"
    alarm = folder / f"{program.parent.name}.alarm"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    until = _ENDS_AFTER_S if answer["healthy"] else timeout_s
    run = [*_COMMTRACE, "run", "--nproc", str(answer["world"]), "--timeout", str(until)]
    run += ["--detail", detail]
    on_hang = "30s" if answer["healthy"] else "9s"
    command = f'echo "${{COMMTRACE_RANKS:-none}}" > {alarm}'
    quiet: dict[str, Any] = {
        "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL,
        "env": environment, "cwd": program.parent,
    }  # fmt: skip
    watch = subprocess.Popen(
        [*_COMMTRACE, "watch", str(path), "--on-hang", on_hang, "--exec", command], **quiet
    )
    try:
        subprocess.run(
            [*run, "-o", str(path), str(program)], check=False, timeout=_ENDS_AFTER_S, **quiet
        )
        watch.wait(30)
    except subprocess.TimeoutExpired:
        pass
    finally:
        watch.kill()
        watch.wait()
    return path, alarm.read_text("utf-8").strip() if alarm.exists() else "-"


def dumps_of(answer: dict[str, Any], folder: Path, *, timeout_s: int) -> list[Path]:
    """Dumps of a program's ranks, after a time-out; none of a rank that has ended."""
    program = _copied(answer, folder)
    dumps = folder / f"{program.parent.name}.dumps"
    dumps.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {}
    for rank in range(answer["world"]):
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "RANK": str(rank),
            "LOCAL_RANK": str(rank), "WORLD_SIZE": str(answer["world"]),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCH_FR_BUFFER_SIZE": "2000",
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.hangs.dumping", str(timeout_s)]
        path = dumps / f"rank{rank}"
        ranks[path] = subprocess.Popen(
            [*command, str(path), str(program)],
            cwd=program.parent, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        until = time.monotonic() + timeout_s + 60
        while time.monotonic() < until and any(
            each.poll() is None and not path.exists() for path, each in ranks.items()
        ):
            time.sleep(0.5)
    finally:
        for each in ranks.values():
            with suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()
    return sorted(dumps.glob("rank[0-9]"))


def _sides(answer: dict[str, Any]) -> list[set[int]]:
    """Sets of ranks that may be blamed; all of them together are a doubt that is right."""
    return [set(each) for each in answer.get("either_side", [answer["culprit_ranks"]])]


def judged(answer: dict[str, Any], frames: Frames) -> tuple[str, str]:
    """Score of a run, and the verdict of its first fault."""
    table = consistency(frames)
    faults = table[table["is_fault"]].to_dict("records")
    if answer["healthy"]:
        return (WRONG, faults[0]["explanation"]) if faults else (RIGHT, "")
    if not faults:
        return MISSED, "no fault"
    parted = divergences(frames)
    rows, verdict = of_fault(parted, faults[0]), first_verdict(table, parted)
    sides = _sides(answer)
    blamed = [
        {int(rank) for rank in fault["ranks"].split(",") if rank}
        for fault in faults
        if not fault["is_one_of_ranks"]
    ]
    if any(each and each not in sides for each in blamed):
        return WRONG, verdict
    # A doubt between several ranks is the answer if any of them may be blamed.
    is_known = bool(blamed and blamed[0]) or len(sides) > 1
    text = " ".join([verdict, *map(str, faults[0].values()), *(str(row) for row in rows)])
    own = [answer["culprit_line"], *answer.get("also_lines", [])]
    waits = [answer["waiting_line"], *answer.get("also_waiting_lines", [])]
    has_lines = all(any(line in text for line in lines) for lines in (own, waits))
    branches = [answer["branch_line"], *answer.get("also_branch_lines", [])]
    is_optional = answer["branch_line"] is None or answer.get("branch_is_optional", False)
    has_branch = is_optional or any(branch in text for branch in filter(None, branches))
    if not (is_known and has_lines and has_branch):
        return HALF, verdict
    is_doubtful = any("` or `" in re.sub(r"` \([^)]*\)", "`", str(row["branch"])) for row in rows)
    return (EITHER if is_doubtful and not is_optional else RIGHT), verdict


def scored(answer: dict[str, Any], folder: Path, *, timeout_s: int, detail: str) -> tuple[str, str]:
    """Run a program, print its line, and return the scores of `check` and of the alarm."""
    if detail == DUMPS:
        dumps, alarm = dumps_of(answer, folder, timeout_s=timeout_s), "-"
        made = import_trace(dumps) if dumps else None
    else:
        path, alarm = recorded(answer, folder, timeout_s=timeout_s, detail=detail)
        made = read_trace(path) if path.exists() else None
    score, verdict = (MISSED, "no recording") if made is None else judged(answer, load(made))
    named = {int(rank) for rank in alarm.split(",")} if alarm not in ("-", "none") else set()
    if answer["healthy"]:
        of_alarm = RIGHT if alarm == "-" else WRONG
    else:
        sides = _sides(answer)
        is_right = named in sides or (len(sides) > 1 and named == set.union(*sides))
        is_half = not named or any(side < named for side in sides)
        of_alarm = RIGHT if is_right else HALF if is_half else WRONG
    name = answer["file"].partition("/")[0]
    print(f"{name:24} {score:6} alarm {of_alarm:6} {verdict}", flush=True)
    return score, of_alarm


def main() -> int:
    """Score the programs that are asked for, and print the sums."""
    parser = argparse.ArgumentParser(description="Score of held-out programs.")
    parser.add_argument("names", nargs="*", help="beginnings of the folders' names")
    parser.add_argument("--parallel", type=int, default=1, help="programs at a time")
    parser.add_argument("--timeout", type=int, default=45, help="seconds of a rank that hangs")
    parser.add_argument("--detail", default="op", help="op, collective or dumps")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.parallel) as pool:
        score = partial(scored, folder=Path(folder), timeout_s=asked.timeout, detail=asked.detail)
        known = answers(asked.names)
        of_hanging = [*pool.map(score, [each for each in known if not each["healthy"]])]
        of_healthy = [*pool.map(score, [each for each in known if each["healthy"]])]
    for name, scores in (("hanging", of_hanging), ("healthy", of_healthy)):
        for what, sums in zip(("check", "alarm"), zip(*scores, strict=True), strict=False):
            text = ", ".join(f"{num} {score}" for score, num in Counter(sums).most_common())
            print(f"{what} of {len(scores)} {name} programs: {text}")
    return int(any(WRONG in each for each in [*of_hanging, *of_healthy]))


if __name__ == "__main__":
    sys.exit(main())
