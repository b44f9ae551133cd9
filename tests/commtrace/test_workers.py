"""Processes that work through lists of jobs, and the errors of their jobs."""

from __future__ import annotations

import os
import platform
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from commtrace.errors import OutputError, UsageError
from commtrace.workers import Workers, in_order


def add(shared: int, job: int) -> tuple[int, int]:
    return shared + job, os.getpid()


def refuse(shared: None, job: int) -> int:
    if job == 2:
        raise UsageError("cannot do it", found="two", why="it is even", attempt="three")
    return job


def fail(shared: None, job: int) -> int:
    raise ZeroDivisionError(f"job {job}")


def faults(shared: None, job: int) -> int:
    """Return how often the system gave memory to arrays that follow each other."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        _ = [bytearray(4 << 20) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def end(shared: None, job: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers("do the work", 2) as workers:
        yield workers


@pytest.mark.parametrize("num", [1, 2])
def test_each_job_has_a_result_in_its_place(num: int, workers: Workers) -> None:
    used = workers if num == 2 else Workers("do the work", 1)
    for shared in (10, 20):
        found = dict(used.results(add, shared, range(7)))
        assert [found[place][0] for place in range(7)] == [shared + job for job in range(7)]
        assert (os.getpid() in {process for _, process in found.values()}) == (num == 1)


def test_results_come_in_order_as_soon_as_they_can() -> None:
    given: list[int] = []

    def results() -> Iterator[tuple[int, Any]]:
        for place in (1, 0, 3, 2):
            given.append(place)
            yield place, f"r{place}"

    found = [(each, len(given)) for each in in_order(results())]
    assert found == [("r0", 2), ("r1", 2), ("r2", 4), ("r3", 4)]


def test_an_error_of_a_job_is_raised_with_its_four_parts() -> None:
    with pytest.raises(UsageError) as raised, Workers("do the work", 2) as own:
        list(own.results(refuse, None, range(4)))
    assert (raised.value.found, raised.value.attempt) == ("two", "three")


def test_an_unexpected_error_has_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError: job"), Workers("work", 2) as own:
        list(own.results(fail, None, range(3)))


def test_a_killed_process_is_an_error_that_says_so() -> None:
    with pytest.raises(OutputError, match="SIGKILL") as raised, Workers("do the work", 2) as own:
        list(own.results(end, None, range(3)))
    assert str(raised.value).startswith("cannot do the work")


@pytest.mark.parametrize(
    ("function", "error"), [(refuse, UsageError), (end, OutputError), (add, None)]
)
def test_a_list_of_jobs_that_was_left_is_not_answered_in_the_next_one(
    function: Callable[[Any, int], Any], error: type[Exception] | None, workers: Workers
) -> None:
    left = workers.results(function, 1, range(6))
    with nullcontext() if error is None else pytest.raises(error):
        for _ in range(1 if error is None else 6):
            next(left)
    found = dict(workers.results(add, 100, range(5)))
    assert [found[place][0] for place in range(5)] == [100, 101, 102, 103, 104]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an option of glibc's malloc")
def test_a_process_keeps_the_memory_of_arrays_for_the_next_ones(workers: Workers) -> None:
    pages = (32 << 20) // resource.getpagesize()
    found = dict(workers.results(faults, None, range(2)))
    assert all(num < 3 * pages for num in found.values())
