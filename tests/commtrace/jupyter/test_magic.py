"""`%%commtrace`: a cell behaves as without it, and its communication is recorded and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError

import commtrace
from commtrace.recorder import RECORDER

SETUP = """\
import torch, torch.distributed as dist
from dtensor_core.testing import fake_world
def reduce(times):
    with fake_world(4):
        for _ in range(times):
            dist.all_reduce(torch.ones(4))
"""


def test_a_cell_is_recorded_and_shown(
    cell: Any, shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cell(SETUP)
    capsys.readouterr()
    cell("%%commtrace run\nx = 3\nreduce(x)\nx + 1")
    out = capsys.readouterr().out
    assert out.startswith("4\n") or out.startswith("Out[3]: 4\n")
    assert "In[3], 3 calls of 1 rank" in out
    assert shell.user_ns["x"] == 3
    calls = shell.user_ns["run"].comm
    assert list(calls["kind"]) == ["all_reduce"] * 3
    assert set(calls["source_file"]) == {"In[2]"}
    assert set(calls["source_line"]) == {6}
    assert RECORDER.buffers == ()


def test_lines_of_the_recorded_cell_are_counted_as_in_the_notebook(cell: Any, shell: Any) -> None:
    cell(SETUP)
    cell("%%commtrace run --quiet\n\nwith fake_world(2):\n    dist.all_reduce(torch.ones(4))")
    calls = shell.user_ns["run"].comm
    assert [*calls["source_file"], *calls["source_line"]] == ["In[3]", 4]


def test_an_error_is_the_cells_own_and_leaves_no_recording_on(cell: Any, shell: Any) -> None:
    cell(SETUP)
    with pytest.raises(ZeroDivisionError) as error:
        cell("%%commtrace run\nreduce(2)\n\n1 / 0")
    line = error.traceback[-1]
    assert line.lineno + 1 == 4
    assert RECORDER.buffers == ()
    assert list(shell.user_ns["run"].comm["kind"]) == ["all_reduce"] * 2
    with commtrace.record() as recording:
        cell("reduce(1)")
    assert recording.counts() == {"all_reduce": 1}


def test_options_choose_what_is_recorded_and_where_it_goes(
    cell: Any, shell: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell(SETUP)
    capsys.readouterr()
    path = tmp_path / "run.json"
    cell(f"%%commtrace run --path {path} --detail collective --stacks --quiet\nreduce(1)")
    assert capsys.readouterr().out == ""
    run = commtrace.load(path)
    assert len(run.ops) == 0
    assert run.run["command"] == "In[3]"
    (stack,) = run.comm["stack"]
    assert "In[2]" in stack
    assert "ipython-input" not in stack
    assert shell.user_ns["run"].path == path
    lines = dict(zip(run.sources["file"], run.sources["text"], strict=True))
    assert lines["In[3]"].strip() == "reduce(1)"
    assert "ipython-input" not in "".join(run.comm["callers"])


def test_without_options_operators_are_recorded_and_nothing_is_named(
    cell: Any, shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cell(SETUP)
    names = set(shell.user_ns)
    cell("%%commtrace\nreduce(1)")
    assert "1 call of 1 rank" in capsys.readouterr().out
    assert {name for name in set(shell.user_ns) - names if not name.startswith("_")} == set()


@pytest.mark.parametrize("line", ["no-name", "--detail everything"])
def test_a_line_that_makes_no_sense_is_refused_before_the_cell_runs(
    line: str, cell: Any, shell: Any
) -> None:
    with pytest.raises(UsageError, match=r"(?s)^%%commtrace.*\nUse:\n    %%commtrace \[NAME\]"):
        cell(f"%%commtrace {line}\nx = 1")
    assert "x" not in shell.user_ns


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("run --nproc 2", "run = commtrace.launch(train, nproc=2)"),
        ("--nproc=8 traced", "run = commtrace.launch(train, nproc=8)"),
        ("mine -n 3", "mine = commtrace.launch(train, nproc=3)"),
        ("run --nproc_per_node 2 train.py", "commtrace run --nproc 2 -o run.json train.py"),
    ],
)
def test_a_cell_for_several_ranks_is_pointed_to_launch(
    line: str, instead: str, cell: Any, shell: Any
) -> None:
    with pytest.raises(UsageError) as refused:
        cell(f"%%commtrace {line}\nx = 1")
    assert instead in str(refused.value)
    assert "x" not in shell.user_ns


def test_magics_in_a_recorded_cell_work(cell: Any, shell: Any) -> None:
    cell("%%commtrace --quiet\npath = %pwd\nfiles = !echo hello")
    assert shell.user_ns["path"] == str(Path.cwd())
    assert list(shell.user_ns["files"]) == ["hello"]


def test_a_cell_of_sql_is_answered_from_runs_in_variables(
    cell: Any, shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cell(SETUP)
    cell("%%commtrace one --quiet\nreduce(3)")
    cell("%%commtrace two --quiet\nreduce(5)")
    capsys.readouterr()
    cell("%%commtrace sql one\nSELECT kind, count(*) AS calls FROM comm\nGROUP BY kind")
    assert capsys.readouterr().out.split()[-2:] == ["all_reduce", "3"]
    cell(
        "%%commtrace sql one two\nSELECT (SELECT count(*) FROM one.comm) AS a, "
        "(SELECT count(*) FROM two.comm) AS b"
    )
    assert capsys.readouterr().out.split()[-2:] == ["3", "5"]


@pytest.mark.parametrize("names", ["", "nothing", "number"])
def test_sql_without_a_run_says_which_variables_have_one(cell: Any, shell: Any, names: str) -> None:
    cell(SETUP)
    cell("%%commtrace one --quiet\nreduce(3)")
    cell("number = 3")
    with pytest.raises(UsageError, match="runs are in: one"):
        cell(f"%%commtrace sql {names}\nSELECT 1")
