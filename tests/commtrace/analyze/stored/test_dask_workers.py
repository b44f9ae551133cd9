"""A Dask cluster analyses the parts of a run: a scheduler and four workers, which may be killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

import commtrace
from commtrace.analyze import CATALOG, Frames, notices_of
from commtrace.analyze.run.frame import frames_of
from commtrace.analyze.stored import DaskWorkers, StoredRun, dask_workers
from commtrace.errors import OutputError, UsageError
from commtrace.tracefile import write_trace
from commtrace.tracefile.dataset import open_dataset, prepare_dataset
from commtrace_cli.main import app
from tests.commtrace.analyze.test_second_computation import TRACES

pytestmark = [
    pytest.mark.timeout(240),
    # Of distributed itself, when a worker is killed or the cluster ends.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    # distributed sets variables of this process for its workers, such as PYTHONHASHSEED.
    before = dict(os.environ)
    import dask
    from distributed import LocalCluster

    # Each worker that is killed is replaced by a new process, which takes seconds.
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        LocalCluster(
            n_workers=4,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,  # type: ignore[arg-type] - no dashboard
            host="127.0.0.1",
        ) as cluster,
    ):
        yield cluster
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def client(cluster: Any) -> Iterator[Any]:
    from distributed import Client

    with Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dask") / "RUN.comm"
    folder.mkdir()
    write_trace(TRACES["training"], folder / "run.json")
    prepare_dataset(folder, workers=1)
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Frames:
    return frames_of(open_dataset(folder).trace())


def test_its_tables_and_notices_are_those_of_this_machine(
    folder: Path, whole: Frames, client: Any
) -> None:
    run = StoredRun(
        open_dataset(folder), rows_of_part=len(whole.comm) // 9, workers=DaskWorkers(client)
    )
    tables = [analysis.function(run) for analysis in CATALOG.values()]
    for table, (name, analysis) in zip(tables, CATALOG.items(), strict=True):
        pd.testing.assert_frame_equal(table, analysis.function(whole), rtol=1e-12, obj=name)
    assert notices_of(run) == notices_of(whole)


def _kill_once(path: Path, number: int) -> int:
    """Kill this process, unless that has happened already."""
    if number == 3 and not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


class _Shared:
    """Data that all parts need; the first worker that has it is noted in a file."""

    def __init__(self, path: Path, pid: int) -> None:
        self.path = path
        self.pid = pid
        if os.getpid() != pid:
            with suppress(FileExistsError), path.open("x") as file:
                file.write(str(os.getpid()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Shared, (self.path, self.pid)


def _kill_the_holder(shared: _Shared, number: int) -> int:
    if shared.path.read_text() == str(os.getpid()):
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def test_what_all_parts_need_outlives_the_worker_that_holds_it(client: Any, tmp_path: Path) -> None:
    shared = _Shared(tmp_path / "holder", os.getpid())
    found = dict(DaskWorkers(client).results(_kill_the_holder, shared, range(8)))
    assert found == {number: number * number for number in range(8)}
    assert int(shared.path.read_text()) not in client.run(os.getpid).values()


def _kill_always(shared: None, number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_what_a_killed_worker_had_is_done_by_another_one(client: Any, tmp_path: Path) -> None:
    found = dict(DaskWorkers(client).results(_kill_once, tmp_path / "killed", range(8)))
    assert found == {number: number * number for number in range(8)}
    assert (tmp_path / "killed").exists()


def test_a_part_on_which_workers_die_is_an_error(client: Any) -> None:
    with pytest.raises(OutputError, match=r"KilledWorker|Cancelled"):
        dict(DaskWorkers(client).results(_kill_always, None, [1]))


def test_errors_of_parts_are_those_of_this_machine(client: Any) -> None:
    with pytest.raises(UsageError, match="no such rank"):
        dict(DaskWorkers(client).results(_refuse, None, [1]))


def _refuse(shared: None, number: int) -> None:
    raise UsageError("cannot read a rank", found="no such rank")


def test_a_table_is_printed_from_a_cluster_and_loaded_with_a_client(
    folder: Path, whole: Frames, cluster: Any, client: Any
) -> None:
    command = ["table", str(folder), "by_kind", "--csv"]
    found = CliRunner().invoke(app, [*command, "--dask", cluster.scheduler_address])
    assert found.exit_code == 0, found.output
    assert found.output == CliRunner().invoke(app, command).output
    run = commtrace.load(folder, dask=client)
    pd.testing.assert_frame_equal(run.table("by_kind"), CATALOG["by_kind"].function(whole))


@pytest.mark.parametrize(
    ("address", "text"), [("tcp://127.0.0.1:9", "scheduler"), ("nonsense://x", "tcp://host:port")]
)
def test_without_a_scheduler_the_error_says_how_to_start_one(
    folder: Path, address: str, text: str
) -> None:
    found = CliRunner().invoke(app, ["table", str(folder), "by_kind", "--dask", address])
    assert isinstance(found.exception, UsageError)
    assert text in str(found.exception)


@pytest.mark.parametrize("address", ["nonsense", "tcp://host", "nonsense://host:1"])
def test_an_invalid_address_is_refused_without_a_client(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that refuses it prints a traceback when the process ends, 10 s later.
    monkeypatch.setattr("distributed.Client", lambda *_, **__: pytest.fail("a client"))
    with pytest.raises(UsageError, match="cannot use the Dask cluster at"):
        dask_workers(address)


def test_a_run_without_a_dataset_is_refused(tmp_path: Path, client: Any) -> None:
    write_trace(TRACES["training"], tmp_path / "run.json")
    with pytest.raises(UsageError, match="commtrace merge"):
        commtrace.load(tmp_path, dask=client)
