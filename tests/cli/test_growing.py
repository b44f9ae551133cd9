"""Runs that are recorded to a file: which of the file and its spools is read, and the messages."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from commtrace.errors import EmptyTraceError
from commtrace.tracefile import RUNNING_RANKS, merge_spools, read_trace, spools_beside
from commtrace.tracefile.liveness import boot
from commtrace_cli import growing
from commtrace_cli.growing import read_run
from tests.cli.conftest import Commtrace
from tests.commtrace.live.growing import SECOND, START_NS, Run, Time
from tests.commtrace.synthetic import write_synthetic_spools

HERE = {"host": socket.gethostname(), "boot": boot(), "pid": os.getpid()}


def left_spools(path: Path) -> Path:
    return write_synthetic_spools(spools_beside(path))


def test_spools_that_were_left_are_read_in_place_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    spools = left_spools(path)
    assert read_run(path).num_rows("comm") == read_trace(spools).num_rows("comm") > 0
    assert capsys.readouterr().err == (
        f"note: {path} was not merged when its recording ended: the spools in {spools} were read\n"
    )
    assert not path.exists()


def test_a_file_comes_before_spools_that_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    spools = left_spools(path)
    merge_spools(spools, path)
    assert read_run(path).path == path
    assert capsys.readouterr().err == ""


def test_spools_of_a_later_run_come_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    spools = left_spools(path)
    merge_spools(spools, path)
    os.utime(path, (1, 1))
    assert read_run(path).path == spools


def test_a_run_that_is_merged_while_its_spools_are_read_is_read_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    spools = left_spools(path)

    def read(source: Path) -> object:
        if source == spools:
            merge_spools(spools, path)
            (spools / "rank-00000.spool").unlink()
        return read_trace(source)

    monkeypatch.setattr(growing, "read_trace", read)
    assert read_run(path).run["missing_ranks"] == []


def test_before_the_first_rank_records_this_is_the_error(
    tmp_path: Path, commtrace: Commtrace
) -> None:
    spools_beside(tmp_path / "run.json").mkdir()
    with pytest.raises(EmptyTraceError, match="a run in which no rank has begun to record"):
        read_run(tmp_path / "run.json")
    ended = commtrace("check", "run.json")
    assert ended.code == 3
    assert "try: again in some seconds" in ended.err


@pytest.mark.parametrize("name", ["RUN.comm", "run.json.spools"])
def test_ranks_whose_process_is_there_still_run(tmp_path: Path, name: str) -> None:
    now = Time((time.time_ns() - START_NS) / SECOND)
    with Run(tmp_path / name, now) as run:
        ranks = run.start_all(2, **HERE)
        gone = run.start(2, 4, **{**HERE, "pid": 2**22 + 1})
        elsewhere = run.start(3, 4, host="elsewhere")
        for rank in (*ranks, gone, elsewhere):
            rank.issue()
        run.flush()
        ranks[1].close()
        assert read_trace(run.folder).run[RUNNING_RANKS] == [0, 3]
        spool = next(run.folder.glob("rank-00003*.spool"))
        os.utime(spool, (time.time() - 60, time.time() - 60))
        assert read_trace(run.folder).run[RUNNING_RANKS] == [0]
