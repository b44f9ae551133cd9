"""A function on several ranks: the run, its values and output, and errors with their place."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import commtrace
import commtrace.launching.watchdog
import commtrace.session.recording
from commtrace.errors import LaunchError, RankError, UsageError
from dtensor_core import DTensor, Shard, distribute_tensor, init_device_mesh

pytestmark = pytest.mark.usefixtures("preloaded")


def train(steps: int, scale: float = 1.0) -> tuple[int, float]:
    x = torch.full((4,), scale)
    for _ in range(steps):
        dist.all_reduce(x)
    print("rank", dist.get_rank(), "is done")
    print("a warning", file=sys.stderr)
    return dist.get_rank(), x.sum().item()


def test_the_run_and_what_ranks_return_and_print_come_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: signal.getsignal(getattr(signal, name)) for name in ("SIGINT", "SIGTERM")}
    path = tmp_path / "run.json"
    run = commtrace.launch(train, 2, args=(3,), kwargs={"scale": 2.0}, path=path)
    assert run.values == ((0, 64.0), (1, 64.0))
    assert run.output == ("rank 0 is done\na warning\n", "rank 1 is done\na warning\n")
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["[rank 0] rank 0 is done", "[rank 1] rank 1 is done"]
    assert sorted(err.splitlines()) == ["[rank 0] a warning", "[rank 1] a warning"]
    assert list(run.comm["kind"]) == ["all_reduce"] * 6
    assert run.run["command"] == "train"
    assert (run.run["world_size"], run.run["missing_ranks"]) == (2, [])
    assert set(run.comm["source_file"]) == {__file__}
    assert run.table("by_rank")["num_calls"].tolist() == [3, 3]
    assert len(run.timeline().data)
    assert run.path == path
    assert len(commtrace.load(path).comm) == 6
    assert before == {name: signal.getsignal(getattr(signal, name)) for name in before}


def test_a_function_of_a_cell_runs_and_is_attributed_to_its_cell(cell: Any, shell: Any) -> None:
    cell("import commtrace, torch.distributed as dist, torch")
    cell("class Loss:\n    value = 1.5\nscale = 2")
    cell(
        "def train():\n"
        "    dist.all_reduce(torch.ones(4) * scale)\n"
        "    loss = Loss()\n"
        "    loss.rank = dist.get_rank()\n"
        "    return loss\n"
    )
    run = cell("run = commtrace.launch(train, nproc=2)\nrun")
    assert [(loss.value, loss.rank) for loss in run.values] == [(1.5, 0), (1.5, 1)]
    assert {isinstance(loss, shell.user_ns["Loss"]) for loss in run.values} == {True}
    assert set(run.comm["source_file"]) == {"In[4]"}
    assert set(run.comm["source_line"]) == {2}


def test_an_error_of_a_rank_is_reported_with_its_traceback_and_what_was_recorded(
    cell: Any,
) -> None:
    cell("import commtrace, torch.distributed as dist, torch")
    cell(
        "def train():\n"
        "    dist.all_reduce(torch.ones(4))\n"
        "    if dist.get_rank() == 1:\n"
        "        raise ValueError('no such data')\n"
        "    dist.all_reduce(torch.ones(4))\n"
    )
    with pytest.raises(RankError) as caught:
        cell("commtrace.launch(train, nproc=2)")
    error = caught.value
    assert str(error) == (
        "train failed on rank 1 of 2\n"
        "  found: ValueError: no such data\n"
        "Traceback (most recent call last):\n"
        '  File "In[3]", line 4, in train\n'
        "    raise ValueError('no such data')\n"
        "ValueError: no such data"
    )
    assert error._render_traceback_() == str(error).splitlines()
    assert (error.rank, error.run is not None) == (1, True)


def test_ranks_that_hang_are_ended_and_each_says_where_it_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test controls the clock, which runs fast once both ranks are there."""

    def hang(folder: Path) -> None:
        threading.Thread(target=report, args=(folder, threading.main_thread()), daemon=True).start()
        if dist.get_rank() == 1:
            stay()
        dist.barrier()

    def stay() -> None:
        time.sleep(600)

    def report(folder: Path, thread: threading.Thread) -> None:
        while not {"stay", "barrier"} & functions_of(thread):
            time.sleep(0.01)
        (recording,) = commtrace.session.recording._open
        recording.trace()  # writes the events recorded so far
        (folder / str(dist.get_rank())).touch()

    def functions_of(thread: threading.Thread) -> set[str]:
        frame = sys._current_frames()[thread.ident]
        return {place.name for place in traceback.extract_stack(frame)}

    def now() -> float:
        return time.monotonic() * (1000 if len(list(tmp_path.iterdir())) == 2 else 1)

    monkeypatch.setattr(commtrace.launching.watchdog, "_now", now)
    with pytest.raises(RankError) as caught:
        commtrace.launch(hang, 2, args=(tmp_path,), timeout_s=100)
    error = caught.value
    lines = str(error).splitlines()
    assert lines[:2] == [
        "hang on 2 ranks did not end within 100 s",
        "  found: ranks 0, 1 still running",
    ]
    first, second = str(error).split("rank 1 was here (most recent call last):\n")
    stack = first.split("rank 0 was here (most recent call last):\n")[1]
    assert "    dist.barrier()" in stack.splitlines()
    assert second.splitlines()[-1] == "    time.sleep(600)"
    assert list(error.run.comm["kind"]) == ["barrier"]


@pytest.mark.parametrize(
    ("way", "found"),
    [
        ("sys.exit(7)", "exit code 7"),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "killed by signal 9 (SIGKILL), possibly for lack of memory",
        ),
    ],
)
def test_a_rank_that_dies_is_named(way: str, found: str) -> None:
    def die() -> None:
        eval(way, {"os": os, "sys": sys, "signal": signal})

    with pytest.raises(RankError) as caught:
        commtrace.launch(die, 1)
    assert str(caught.value) == f"die failed on rank 0 of 1\n  found: {found}"


def test_a_function_may_make_its_process_group_itself() -> None:
    def train() -> bool:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(2))
        dist.destroy_process_group()
        return dist.is_initialized()

    run = commtrace.launch(train, 2)
    assert run.values == (False, False)
    assert list(run.comm["kind"]) == ["all_reduce"] * 2


def test_no_process_group_is_made_where_none_is_asked_for() -> None:
    run = commtrace.launch(dist.is_initialized, 1, backend=None, detail="collective")
    assert run.values == (False,)
    assert len(run.ops) == 0


def test_distributed_tensors_are_recorded_with_their_reason() -> None:
    def shard() -> torch.Tensor:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        x = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)], src_data_rank=None)
        assert isinstance(x, DTensor)
        return x.full_tensor()

    run = commtrace.launch(shard, 2)
    assert run.values[1].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert set(run.comm["source_spec"]) == {"f32[4] tp:S(0)"}


def test_what_makes_no_sense_is_refused_before_ranks_start() -> None:
    with pytest.raises(UsageError, match="cannot run train on 0 ranks"):
        commtrace.launch(train, 0)
    with pytest.raises(UsageError, match="cannot record with detail 'all'"):
        commtrace.launch(train, 2, detail="all")
    assert issubclass(RankError, LaunchError)
