"""Place of a spool, and the process and time of its merging."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from commtrace.errors import NewerTraceError, NotATraceError
from commtrace.event import CommEvent, GroupRow
from commtrace.tracefile import SpoolWriter, read_parts, read_trace, spool_name
from commtrace.tracefile.destinations import Memory, RunFile, RunFolder, SpoolFolder, store_for
from tests.commtrace.synthetic import START_NS, synthetic_facts


def write(store: RunFile | SpoolFolder, rank: int, **facts: object) -> None:
    process = {"host": socket.gethostname(), "pid": os.getpid()}
    with store.open(rank) as stream:
        SpoolWriter(stream, synthetic_facts(rank, 2) | process | facts)


def _ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(timeout=30)
    return process.pid


def test_memory_is_written_to_and_read_back() -> None:
    stream = Memory().open(0)
    SpoolWriter(stream, {"rank": 0})
    stream.seek(0)
    assert stream.read().startswith(b"commtrace-spool")


def test_a_folder_keeps_its_spools_and_marks_those_that_are_done(tmp_path: Path) -> None:
    store = SpoolFolder(tmp_path / "spools")
    write(store, 1)
    store.close(1, 2)
    assert {path.name for path in (tmp_path / "spools").iterdir()} == {
        "rank-00001.spool",
        "rank-00001.done",
    }


def test_rank_0_joins_what_is_there_and_removes_the_spools(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    other, first = RunFile(path, 5.0), RunFile(path, 5.0)
    write(other, 1)
    write(first, 0)
    other.close(1, 2)
    assert not path.exists()
    first.close(0, 2)
    assert list(read_trace(path).tables["ranks"]["rank"]) == [0, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_rank_0_waits_for_ranks_that_still_record(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    other, first = RunFile(path, 30.0), RunFile(path, 30.0)
    write(other, 1)
    write(first, 0)
    closing = threading.Timer(0.3, other.close, (1, 2))
    closing.start()
    begin = time.monotonic()
    first.close(0, 2)
    assert time.monotonic() - begin >= 0.25
    closing.join()


@pytest.mark.parametrize("timeout_s", [0.2, 30.0])
def test_rank_0_does_not_wait_for_ever_nor_for_the_dead(timeout_s: float, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    other, first = RunFile(path, timeout_s), RunFile(path, timeout_s)
    write(first, 0)
    write(other, 1, **({} if timeout_s < 1 else {"pid": _ended_pid()}))
    begin = time.monotonic()
    first.close(0, 2)
    assert time.monotonic() - begin < 10
    assert read_trace(path).run["torn_ranks"] == [0, 1]
    spools = tmp_path / "run.json.spools"
    assert spools.exists() == (timeout_s < 1)


def test_what_a_rank_writes_after_rank_0_has_waited_for_it_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    other, first = RunFile(path, 0.1), RunFile(path, 0.1)
    calls, groups = [CommEvent(rank=1, id=0, group="0")], [GroupRow("0", "", "0,1", 2)]
    with other.open(1) as stream:
        writer = SpoolWriter(stream, synthetic_facts(1, 2))
        write(first, 0)
        first.close(0, 2)
        assert read_trace(path).num_rows("comm") == 0
        writer.write({"comm": calls, "groups": groups}, {"complete": True})
    other.close(1, 2)
    spools = tmp_path / "run.json.spools"
    assert {each.name for each in spools.iterdir()} == {"rank-00001.spool", "rank-00001.done"}
    assert read_parts([path, spools]).num_rows("comm") == 1


def test_what_a_dead_program_left_is_not_taken_for_a_part_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    left = RunFile(path, 5.0)
    write(left, 1, pid=_ended_pid())
    left.close(1, 2)
    store = RunFile(path, 5.0)
    write(store, 0)
    store.close(0, 2)
    trace = read_trace(path)
    assert list(trace.tables["ranks"]["rank"]) == [0]
    assert trace.run["missing_ranks"] == [1]


def test_spools_that_are_named_by_rank_are_written_anew(tmp_path: Path) -> None:
    folder = tmp_path / "spools"
    for _ in range(2):
        store = SpoolFolder(folder)
        write(store, 0)
    assert [path.name for path in folder.iterdir()] == [spool_name(0)]


def test_a_spool_that_another_process_writes_is_not_touched(tmp_path: Path) -> None:
    other = tmp_path / spool_name(0)
    write(SpoolFolder(tmp_path), 0, pid=os.getppid())
    before = other.read_bytes()
    store = SpoolFolder(tmp_path)
    write(store, 0)
    store.close(0, 1)
    assert other.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {
        spool_name(0),
        f"rank-00000.{os.getpid()}.spool",
        f"rank-00000.{os.getpid()}.done",
    }


def test_an_empty_spool_that_nobody_began_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    store = RunFile(path, 30.0)
    write(store, 0)
    left = tmp_path / "run.json.spools" / spool_name(1)
    left.touch()
    os.utime(left, (0, 0))
    begin = time.monotonic()
    store.close(0, 2)
    assert time.monotonic() - begin < 10
    assert read_trace(path).run["missing_ranks"] == [1]


def test_a_process_that_began_after_the_last_write_did_not_write_it(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    folder = tmp_path / "run.json.spools"
    write(SpoolFolder(folder), 1, pid=os.getppid())  # a live process that has got a dead one's id
    spool = folder / spool_name(1)
    long_ago = time.time() - 50 * 365 * 24 * 3600
    os.utime(spool, (long_ago, long_ago))
    store, other = RunFile(path, 30.0), RunFile(path, 30.0)
    write(store, 0)
    write(other, 1)
    other.close(1, 2)
    store.close(0, 2)
    trace = read_trace(path)
    assert list(trace.tables["ranks"]["rank"]) == [0, 1]
    assert list(trace.tables["ranks"]["pid"]) == [os.getpid()] * 2


def test_another_host_s_spool_of_an_earlier_run_is_kept_beside_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    folder = tmp_path / "run.json.spools"
    left = SpoolFolder(folder)
    write(left, 1, host="elsewhere", start_ns=START_NS - 1000, end_ns=START_NS - 1)
    store, other = RunFile(path, 0.2), RunFile(path, 0.2)
    write(store, 0)
    write(other, 1)
    other.close(1, 2)
    store.close(0, 2)
    assert read_trace(path).run["left_out_spools"] == [spool_name(1)]
    assert [each.name for each in folder.iterdir()] == [spool_name(1)]


def test_a_run_folder_keeps_every_recording_of_a_rank(tmp_path: Path) -> None:
    stores = [RunFolder(tmp_path / "RUN.comm") for _ in range(3)]
    write(stores[0], 1)
    stores[0].close(1, 2)
    write(stores[1], 1, pid=_ended_pid())
    write(stores[2], 1)
    names = {path.name for path in (tmp_path / "RUN.comm").glob("*.spool")}
    assert names == {"rank-00001.spool", "rank-00001.1.spool", "rank-00001.2.spool"}
    # The first one's process, this one, is alive.
    assert [store.num_earlier for store in stores] == [0, 0, 1]


def test_the_manifest_says_what_the_folder_is(tmp_path: Path) -> None:
    folder = tmp_path / "RUN.comm"
    write(RunFolder(folder), 0)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest.keys() == {"format", "version", "created"}
    assert read_trace(folder).num_rows("ranks") == 1
    (folder / "manifest.json").write_text(json.dumps({**manifest, "version": 2}))
    with pytest.raises(NewerTraceError, match="version 2 of the folder's format"):
        read_trace(folder)
    (folder / "manifest.json").write_text(json.dumps({**manifest, "version": "x"}))
    with pytest.raises(NotATraceError, match="a version is an integer from 1"):
        read_trace(folder)
    # Of another tool, or damaged: the parts state all that is needed.
    for text in ("[]", "{", '{"format": "other", "version": 9}'):
        (folder / "manifest.json").write_text(text)
        assert read_trace(folder).num_rows("ranks") == 1


def test_a_spool_that_was_removed_while_it_was_written_is_reported(tmp_path: Path) -> None:
    store = RunFolder(tmp_path / "RUN.comm")
    write(store, 0)
    shutil.rmtree(tmp_path / "RUN.comm")
    with pytest.raises(FileNotFoundError):
        store.close(0, 1)


@pytest.mark.parametrize(("name", "store"), [("RUN.comm", RunFolder), ("run.json", RunFile)])
def test_the_suffix_of_a_path_selects_its_store(name: str, store: type) -> None:
    assert type(store_for(Path(name), 1.0)) is store
