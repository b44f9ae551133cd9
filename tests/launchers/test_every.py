"""Ranks that record every Nth step, however they are started."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from commtrace.analyze import load
from commtrace.analyze.consistency import consistency
from commtrace.tracefile import Trace, read_trace
from tests.launchers.programs import Ended, recorded, run, run_ranks

pytestmark = pytest.mark.usefixtures("preloaded")

OWN = [sys.executable, "-m", "commtrace_cli", "run", "-n", "2"]
LONG = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(14):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""

MARKED = """
import torch, torch.distributed as dist, commtrace
dist.init_process_group("gloo")
with commtrace.record("own.json") as recording:
    for _ in range(14):
        dist.all_reduce(torch.ones(3))
        recording.step()
dist.destroy_process_group()
"""


def require_sampled(trace: Trace, steps: set[int]) -> None:
    """Check that both ranks have these of 14 steps, each as a whole, and match."""
    assert trace.run["every"] == 6
    assert (trace.run["missing_ranks"], trace.run["torn_ranks"]) == ([], [])
    comm = trace.tables["comm"]
    calls: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for rank, step, kind, seq in zip(
        comm["rank"], comm["step"], comm["kind"], comm["seq"], strict=True
    ):
        calls.setdefault((rank, step), []).append((kind, seq))
    assert {step for _, step in calls} - {-1} == steps
    assert all(calls[0, step] == calls[1, step] for step in steps)
    ((_, seq),), ((_, later),) = calls[0, 6], calls[0, 12]
    assert later - seq == 6
    assert set(trace.tables["steps"]["step"]) == steps


@pytest.mark.parametrize(
    ("start", "command", "variables", "output"),
    [
        (run, [*OWN, "--every", "6", "-o", "run.json", "train.py"], {}, "run.json"),
        (
            run_ranks,
            [*recorded(), "--every", "6", "--detail", "op", "train.py"],
            {},
            "RUN.comm",
        ),
        (
            run_ranks,
            [sys.executable, "train.py"],
            {"COMMTRACE": "RUN.comm", "COMMTRACE_EVERY": "6"},
            "RUN.comm",
        ),
    ],
    ids=["run", "record", "variable"],
)
def test_both_ranks_have_the_same_steps(
    tmp_path: Path,
    start: Callable[..., Ended],
    command: list[str],
    variables: dict[str, str],
    output: str,
) -> None:
    (tmp_path / "train.py").write_text(LONG)
    ended = start(command, tmp_path, variables)
    assert ended.code == 0, ended.text
    trace = read_trace(tmp_path / output)
    require_sampled(trace, {0, 1, 6, 12})
    # Without a step: the first communication of DistributedDataParallel.
    assert set(trace.tables["comm"]["step"]) == {-1, 0, 1, 6, 12}
    problems = consistency(load(tmp_path / output))
    assert problems["problem"].tolist() == ["lost calls"]
    assert not problems["is_fault"].any()


def test_marks_of_the_script_are_those_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MARKED)
    ended = run([*OWN, "--every", "6", "-o", "run.json", "train.py"], tmp_path)
    assert ended.code == 0, ended.text
    trace = read_trace(tmp_path / "run.json")
    assert trace.run["steps_from"] == "marked"
    require_sampled(trace, {0, 6, 12})
