"""Score of `commtrace compare` on programs whose authors had read docs/values.md only.

The audit of gradients is scored, too.

    python -m tests.values.score                  all cases of `held_out`, 15 to 25 minutes
    python -m tests.values.score a01 b --parallel 2
    python -m tests.values.score --keep FOLDER    recordings stay there, and are used again

A case is two runs of a program, the second in another layout. A mutant has a fault in the
second run; its author wrote down the first wrong tensor, its lines and its module:

    place     the tensor, or a result at any of the lines, or communication of these in the evidence
    module    the right module only
    other     another place
    unseen    nothing differs, or too little was compared

`?` marks a score that `compare` calls doubtful. An `alarm` is a tensor that is called wrong in runs
that should agree. Both levels of recording are scored, in turn.
The exit code is 1 if a place is wrong without a doubt, or if there is an alarm.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from commtrace.analyze import load
from commtrace.analyze.comparisons.compared import compare
from commtrace.analyze.gradients import wrong_reductions
from commtrace.analyze.values import Fault

PROGRAMS = Path(__file__).with_name("held_out")
LEVELS = ("op", "module")
PLACE, MODULE, OTHER, UNSEEN, ALARM, AGREES = (
    "place", "module", "other", "unseen", "alarm", "agrees",
)  # fmt: skip
_COMMTRACE = [sys.executable, "-m", "commtrace_cli"]
_SIDES = ("first", "second", "reference")
_ENDS_AFTER_S = 180
_LOCK = Lock()
_RECORDED: dict[Path, Lock] = {}
_OF_ROLES = {
    "named": "tensor", "updated": "updated parameter", "unclipped": "gradient",
    "output_gradient": "output gradient",
}  # fmt: skip


_STATES = ("parameter", "updated parameter", "buffer")
"""Roles of a tensor that a case names without a role."""


def cases(names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the cases whose ids begin with any of some names; all without names."""
    known = json.loads((PROGRAMS / "cases.json").read_text("utf-8"))
    return [each for each in known if not names or each["id"].startswith(tuple(names))]


def recorded(case: dict[str, Any], side: str, level: str, folder: Path) -> Path:
    """Return the recording of a run of a case, which is made unless the folder has it."""
    run, program = case[side], PROGRAMS / case["program"]
    name = "_".join([case["program"], str(run["nproc"]), *run["args"], level])
    path = folder / f"{re.sub('[^A-Za-z0-9]+', '_', name)}.json"
    with _LOCK:
        own = _RECORDED.setdefault(path, Lock())
    with own:  # cases that run at the same time share recordings
        if path.exists():
            return path
        command = [*_COMMTRACE, "run", "--nproc", str(run["nproc"]), "--values"]
        command += ["--values-level", level, "-o", str(path), program.name, *run["args"]]
        subprocess.run(
            command, check=True, timeout=_ENDS_AFTER_S, cwd=program.parent, capture_output=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    return path


def _plain(text: str) -> str:
    """Return the name of a tensor without wrappers, remarks, and its place among outputs."""
    text = text.replace("module.", "").replace("gradient before clipping", "gradient")
    text = text.replace("gradient of the output of", "output gradient of")
    text = re.sub("^gradient of ", "gradient ", text)
    text = re.sub(r" \([^)]*\)$", "", text)
    return re.sub(r"^(input|output|output gradient) \S+ of ", r"\1 of ", text.strip())


def is_at_place(case: dict[str, Any], fault: Fault) -> bool:
    """Return whether a fault is where the author of a case says that it is."""
    tensor = fault.right
    lines = {Path(each).name for each in case["lines"]}
    calls = [(each["source_file"], each["source_line"]) for each in fault.communication]
    if tensor["role"] == "result":
        calls.append((tensor["source_file"], tensor["source_line"]))
    if lines & {f"{Path(str(file)).name}:{line}" for file, line in calls}:
        return True
    role = _OF_ROLES.get(tensor["role"], tensor["role"])
    is_of_module = tensor["role"] in ("input", "output", "output_gradient")
    name = _plain(f"{role} of {tensor['module']}" if is_of_module else f"{role} {tensor['name']}")
    # A module outside of the model is named by its class.
    outer = str(tensor["module"]).partition(".")[0]
    if outer[:1].isupper() and outer in case["modules"]:
        name = name.replace(f"{outer}.", "")
    wanted = [_plain(each) for each in case["tensors"]]
    wanted += [f"{role} {each}" for each in wanted if " " not in each and role in _STATES]
    return any(name == each or (each[-1] == "*" and name.startswith(each[:-1])) for each in wanted)


def score_of(case: dict[str, Any], fault: Fault | None, *, is_conclusive: bool) -> str:
    """Return the score of a comparison."""
    if fault is None:
        return UNSEEN if case["mutant"] else AGREES if is_conclusive else f"{AGREES}?"
    doubt = "" if fault.is_certain else "?"
    if not case["mutant"]:
        return ALARM + doubt
    if is_at_place(case, fault):
        return PLACE + doubt
    name = str(fault.right["name"])
    modules = {fault.right["module"], *(name[: each.start()] for each in re.finditer(r"\.", name))}
    modules = {_plain(str(each)) for each in modules}
    is_there = "*" in case["modules"] or not modules.isdisjoint(map(_plain, case["modules"]))
    return (MODULE if is_there else OTHER) + doubt


def scored(case: dict[str, Any], folder: Path) -> tuple[list[str], str]:
    """Record and compare a case; return its score at each level, and the audit's."""
    found, texts = [], []
    for level in LEVELS:
        paths = [recorded(case, side, level, folder) for side in _SIDES if side in case]
        runs = [load(path) for path in paths]
        compared = compare(*runs)
        found.append(score_of(case, compared.fault, is_conclusive=compared.is_conclusive))
        fault = compared.fault
        texts.append("" if fault is None else f"{fault.right['role']} {fault.right['module']}")
    is_reported = bool(wrong_reductions(runs[1]))
    is_right = case.get("audit", "no") in ("either", "yes" if is_reported else "no")
    audit = "right" if is_right else "alarm" if is_reported else "unseen"
    columns = [f"{one:8} {text[:34]:34}" for one, text in zip(found, texts, strict=True)]
    print(f"{case['id']:5} {' '.join(columns)} audit {audit:7} {case['kind']}", flush=True)
    return found, audit


def main() -> int:
    """Score the cases that are asked for, and print the sums."""
    parser = argparse.ArgumentParser(description="Score of held-out cases.")
    parser.add_argument("names", nargs="*", help="beginnings of the cases' ids")
    parser.add_argument("--parallel", type=int, default=1, help="cases at a time")
    parser.add_argument("--keep", type=Path, help="folder of the recordings")
    given = parser.parse_args()
    chosen = cases(given.names)
    kept = nullcontext(given.keep) if given.keep else tempfile.TemporaryDirectory()
    with kept as folder, ThreadPoolExecutor(given.parallel) as pool:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        results = list(pool.map(partial(scored, folder=path), chosen))
    is_bad = False
    for number, level in enumerate(LEVELS):
        for is_mutant in (True, False):
            counted = Counter(
                found[number]
                for case, (found, _) in zip(chosen, results, strict=True)
                if case["mutant"] == is_mutant
            )
            what = "mutants" if is_mutant else "pairs that agree"
            print(f"{level:7} {what}: {dict(counted.most_common())}")
            is_bad |= bool(counted[OTHER] + counted[ALARM] + counted[f"{ALARM}?"])
    print("audit:", dict(Counter(audit for _, audit in results).most_common()))
    return int(is_bad)


if __name__ == "__main__":
    raise SystemExit(main())
