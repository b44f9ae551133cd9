"""A dataset holds what its parts do, however often its preparation was interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from commtrace.errors import EmptyTraceError, OutputError, TraceError, UsageError
from commtrace.schema import EVENT_TABLES
from commtrace.tracefile import read_parts, spool_name
from commtrace.tracefile.dataset import open_dataset, prepare_dataset
from tests.commtrace.synthetic import write_synthetic_spools
from tests.commtrace.tracefile.dataset.runs import RUNS, same

PREPARE = """
import sys
from pathlib import Path
from commtrace.tracefile.dataset import prepare_dataset
if __name__ == "__main__":
    prepare_dataset(Path(sys.argv[1]), workers=int(sys.argv[2]))
"""


@pytest.mark.parametrize("name", RUNS)
def test_a_dataset_is_the_trace_of_its_parts(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "RUN.comm"
    RUNS[name](folder)
    before = {path: path.read_bytes() for path in folder.rglob("*.spool")}
    parts = read_parts([folder])
    assert prepare_dataset(folder, workers=1) == folder / "dataset"
    dataset = open_dataset(folder)
    trace = dataset.trace()
    assert same(trace, parts)
    for table in trace.tables:
        assert dataset.num_rows(table) == trace.num_rows(table)
        of_ranks = [dataset.trace(ranks=[rank]).tables[table] for rank in dataset.ranks]
        if "rank" in trace.tables[table]:
            for column, values in trace.tables[table].items():
                assert [each for own in of_ranks for each in own[column]] == list(values)
    assert {path: path.read_bytes() for path in folder.rglob("*.spool")} == before


def test_several_processes_prepare_the_same(tmp_path: Path) -> None:
    one, other = (write_synthetic_spools(tmp_path / name) for name in ("one", "other"))
    told: list[tuple[int, int]] = []
    prepare_dataset(one, workers=1)
    prepare_dataset(other, workers=2, progress=lambda done, of: told.append((done, of)))
    assert same(open_dataset(one).trace(), open_dataset(other).trace())
    assert told == [(number + 1, 4) for number in range(4)]


def modified(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in (folder / "dataset").glob("*/rank-*.parquet")
    }


def test_only_what_has_changed_is_prepared_again(tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "RUN.comm")
    prepare_dataset(folder)
    before = modified(folder)
    prepare_dataset(folder)
    assert modified(folder) == before
    spool = folder / spool_name(1)
    spool.write_bytes(spool.read_bytes()[:-3])
    (folder / "dataset" / "comm" / "rank-00003.parquet").write_bytes(b"PAR1")
    prepare_dataset(folder)
    after = modified(folder)
    changed = {name for name in before if before[name] != after[name]}
    assert {Path(name).stem for name in changed} == {"rank-00001", "rank-00003"}
    assert same(open_dataset(folder).trace(), read_parts([folder]))


def test_a_file_that_has_changed_in_its_footer_is_prepared_again(tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "RUN.comm")
    prepare_dataset(folder)
    path = folder / "dataset" / "comm" / "rank-00003.parquet"
    data = path.read_bytes()
    changed = data.replace(b"parquet-cpp-arrow", b"parquet-cpp-arrox")
    assert changed != data
    path.write_bytes(changed)
    with pytest.raises(TraceError, match="other contents"):
        open_dataset(folder).trace()
    prepare_dataset(folder)
    assert path.read_bytes() == data
    assert same(open_dataset(folder).trace(), read_parts([folder]))


def test_a_decision_of_all_ranks_that_has_changed_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "RUN.comm"
    RUNS["hosts"](folder)
    aside = tmp_path / spool_name(0)
    (folder / spool_name(0)).rename(aside)
    prepare_dataset(folder)
    aside.rename(folder / spool_name(0))
    prepare_dataset(folder)
    assert same(open_dataset(folder).trace(), read_parts([folder]))
    (folder / spool_name(3)).unlink()
    prepare_dataset(folder)
    assert same(open_dataset(folder).trace(), read_parts([folder]))
    assert not list((folder / "dataset").rglob("rank-00003*"))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_preparation_killed_at_any_time_is_resumed(workers: int, tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "RUN.comm", world_size=6, num_steps=40)
    parts = read_parts([folder])
    command = [sys.executable, "-c", PREPARE, str(folder), str(workers)]
    for num_files in (1, 8):
        preparing = subprocess.Popen(command, start_new_session=True)
        deadline = time.monotonic() + 120
        while len(modified(folder)) < num_files and preparing.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        # The parent alone: its workers notice.
        os.kill(preparing.pid, signal.SIGKILL)
        preparing.wait(30)
        while _lives(preparing.pid):
            assert time.monotonic() < deadline, "a worker is left"
            time.sleep(0.05)
    left = _of_complete_ranks(modified(folder))
    assert left
    prepare_dataset(folder, workers=1)
    assert {name: modified(folder)[name] for name in left} == left
    assert same(open_dataset(folder).trace(), parts)
    assert not [path for path in folder.rglob("*") if path.name.startswith(".")]


def test_a_second_preparation_waits_for_the_first_and_goes_on_with_its_files(
    tmp_path: Path,
) -> None:
    folder = write_synthetic_spools(tmp_path / "RUN.comm")
    second = threading.Thread(target=prepare_dataset, args=(folder,), kwargs={"workers": 1})

    def begin_second(num_done: int, _: int) -> None:
        if num_done == 1:
            second.start()
            second.join(0.3)  # takes less if it does not wait

    prepare_dataset(folder, workers=1, progress=begin_second)
    waited, files = second.is_alive(), modified(folder)
    second.join(60)
    assert waited
    assert not second.is_alive()
    assert modified(folder) == files
    assert same(open_dataset(folder).trace(), read_parts([folder]))


def _of_complete_ranks(times: dict[str, int]) -> dict[str, int]:
    """The files of ranks that have all of theirs; a rank that lacks a file is converted again."""
    num_files = Counter(Path(name).name for name in times)
    return {
        name: at for name, at in times.items() if num_files[Path(name).name] == len(EVENT_TABLES)
    }


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_worker_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_synthetic_spools(tmp_path / "RUN.comm")

    def kill(done: int, of: int) -> None:
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        for child in map(int, children):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(child, signal.SIGKILL)

    with pytest.raises(OutputError) as error:
        prepare_dataset(folder, workers=2, progress=kill)
    assert "a worker process that ended with signal SIGKILL" in str(error.value)
    prepare_dataset(folder)
    assert same(open_dataset(folder).trace(), read_parts([folder]))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_reported_and_loses_nothing(
    workers: int, disk_of: Callable[[str], Path]
) -> None:
    folder = write_synthetic_spools(disk_of("200k") / "RUN.comm", world_size=12, num_steps=4)
    parts = read_parts([folder])
    with pytest.raises(OutputError) as error:
        prepare_dataset(folder, workers=workers)
    assert "found: no space left on the device" in str(error.value)
    assert same(read_parts([folder]), parts)
    with pytest.raises(TraceError, match=r"no manifest\.json"):
        open_dataset(folder)


def test_a_limit_on_files_is_reported(tmp_path: Path) -> None:
    folder = write_synthetic_spools(tmp_path / "RUN.comm", num_steps=40)
    code = f"ulimit -f 1; exec {sys.executable} -c '{PREPARE}' {folder} 1"
    ended = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=120)
    assert "a limit on file sizes" in ended.stderr
    prepare_dataset(folder)
    assert same(open_dataset(folder).trace(), read_parts([folder]))


def test_a_folder_that_cannot_be_written_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_synthetic_spools(tmp_path / "RUN.comm")
    (folder / "dataset").write_text("a file")
    with pytest.raises(OutputError):
        prepare_dataset(folder)
    (folder / "dataset").unlink()
    if os.geteuid():  # root may write anywhere
        folder.chmod(0o500)
        with pytest.raises(OutputError, match="no permission"):
            prepare_dataset(folder)
        folder.chmod(0o700)


def test_without_parts_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(EmptyTraceError):
        prepare_dataset(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_impossible_value_is_refused_when_it_is_prepared(tmp_path: Path) -> None:
    from commtrace.event import CommEvent
    from commtrace.tracefile import SpoolWriter
    from tests.commtrace.synthetic import synthetic_facts

    with open(tmp_path / spool_name(0), "wb") as stream:
        writer = SpoolWriter(stream, synthetic_facts(0, 1))
        writer.write({"comm": [CommEvent(rank=0, id=0, call_ns=-5)]})
    with pytest.raises(TraceError, match=r"tables\.comm\.columns\.call_ns"):
        prepare_dataset(tmp_path)


def test_without_pyarrow_the_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_synthetic_spools(tmp_path / "RUN.comm")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError) as error:
        prepare_dataset(folder)
    assert str(error.value) == (
        f"cannot prepare the dataset of {folder}\n"
        "  found: no pyarrow\n"
        "  why: a dataset is Parquet, which commtrace reads and writes with pyarrow\n"
        "  try: `pip install 'commtrace[parquet]'`"
    )
