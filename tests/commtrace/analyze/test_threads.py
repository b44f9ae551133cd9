"""Threads that analyse a run at the same time, like the threads of a web server or a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier, get_ident
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.run.parts import PartedRun, RunPart
from commtrace.analyze.stored import StoredRun
from commtrace.tracefile import write_trace
from commtrace.tracefile.dataset import Dataset, open_dataset, prepare_dataset
from tests.commtrace.analyze.split_run import SplitRun
from tests.commtrace.analyze.test_second_computation import TRACES

pytestmark = pytest.mark.timeout(120)
NAMES = ("by_module", "by_kind", "overlap", "stragglers", "consistency", "by_step", "by_rank")
NUM_THREADS = 6


@pytest.fixture(autouse=True)
def _frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module")
def whole() -> Frames:
    return load(TRACES["training"])


def in_memory(whole: Frames, folder: Path) -> Frames:
    return load(TRACES["training"])


def split(whole: Frames, folder: Path) -> PartedRun:
    return SplitRun(whole)


def stored(whole: Frames, folder: Path) -> PartedRun:
    return StoredRun(dataset_in(folder), rows_of_part=len(whole.comm) // 3)


def dataset_in(folder: Path) -> Dataset:
    run = folder / "RUN.comm"
    run.mkdir()
    write_trace(TRACES["training"], run / "run.json")
    prepare_dataset(run, workers=1)
    return open_dataset(run)


@pytest.fixture(params=[in_memory, split, stored])
def run(request: pytest.FixtureRequest, whole: Frames, tmp_path: Path) -> Frames:
    return request.param(whole, tmp_path)


def results(functions: list[Callable[[], Any]]) -> list[Any]:
    """Return the results of functions, or their errors, each in a thread."""
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        futures = [pool.submit(function) for function in functions]
        errors = [future.exception(timeout=100) for future in futures]
    return [error or future.result() for error, future in zip(errors, futures, strict=True)]


def test_threads_that_share_a_run_have_the_tables_of_a_single_one(
    run: Frames, whole: Frames
) -> None:
    found = results([partial(CATALOG[name].function, run) for name in NAMES * 3])
    for table, name in zip(found, NAMES * 3, strict=True):
        assert isinstance(table, pd.DataFrame), table
        expected = CATALOG[name].function(whole)
        pd.testing.assert_frame_equal(table, expected, rtol=1e-12, obj=name)


def test_an_error_or_an_interrupt_of_one_thread_leaves_the_others_able_to_go_on(
    run: Frames, whole: Frames
) -> None:
    def fails(part: Frames, error: type[BaseException]) -> None:
        arrivals(part)
        raise error(part.comm["kind"].iloc[0])

    by_module = partial(CATALOG["by_module"].function, run)
    raised = ValueError, KeyboardInterrupt, KeyboardInterrupt
    *errors, table = results([*(partial(run.by_ranks, fails, each) for each in raised), by_module])
    assert tuple(map(type, errors)) == raised
    pd.testing.assert_frame_equal(table, CATALOG["by_module"].function(whole), rtol=1e-12)
    pd.testing.assert_frame_equal(by_module(), table)


class ThreadsOfAWorker:
    """Runs jobs as the threads of a Dask worker do, which share the modules of a process."""

    def results(self, function: Any, shared: Any, jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        yield from enumerate(results([partial(function, shared, job) for job in jobs]))


def test_threads_of_a_worker_share_no_run(whole: Frames, tmp_path: Path) -> None:
    meeting = Barrier(2)

    def thread_and_run(part: RunPart) -> tuple[int, int]:
        if part.number in (1, 2):
            meeting.wait(60)
        return get_ident(), id(part.parent)

    size = len(whole.comm) // 6
    run = StoredRun(dataset_in(tmp_path), rows_of_part=size, workers=ThreadsOfAWorker())
    found = run.by_ranks(thread_and_run)
    assert len(found) > 3
    assert found[1][0] != found[2][0]
    assert len({thread for thread, _ in found}) == len({parent for _, parent in found})
