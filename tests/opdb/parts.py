"""Scan of the database in parts, spread over processes."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

import torch

from tests.opdb.runs import RUNS
from tests.opdb.scan import Tally, scan


def database() -> Sequence[Any]:
    """Return torch's OpInfos; dtensor_core changes functions they hold, so it is imported first."""
    return importlib.import_module("torch.testing._internal.common_methods_invocations").op_db


# Operators per task: few enough to keep all processes busy to the end.
_CHUNK = 8


def tallies_of(
    runs: Sequence[str], only: Collection[str], samples: int, combinations: int, processes: int
) -> Iterator[tuple[str, dict[str, Tally], float]]:
    """Yield each run's tallies by operator, and its seconds; the next run starts meanwhile."""
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    try:
        tasks = {name: _submit(pool, name, only, samples, combinations) for name in runs}
        start = time.time()
        for name, parts in tasks.items():
            tallies: dict[str, Tally] = {}
            for part in as_completed(parts):
                tallies |= part.result()
            yield name, tallies, time.time() - start
            start = time.time()
    finally:
        pool.shutdown(cancel_futures=True)


def _submit(
    pool: ProcessPoolExecutor, name: str, only: Collection[str], samples: int, combinations: int
) -> list[Future[dict[str, Tally]]]:
    """Submit the parts of a run."""
    numbers = [
        number
        for number, info in enumerate(database())
        if (not only or info.name in only) and RUNS[name].dtype in info.supported_dtypes("cpu")
    ]
    count = -(-len(numbers) // _CHUNK)
    parts = (numbers[part::count] for part in range(count))
    return [pool.submit(_scan, name, part, samples, combinations) for part in parts]


def _scan(name: str, numbers: Sequence[int], samples: int, combinations: int) -> dict[str, Tally]:
    """Scan some operators, in a process of the pool."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    operators = database()
    infos = [operators[number] for number in numbers]
    return {
        f"{info.name} {info.variant_test_name}".strip(): scan(
            info, RUNS[name], samples=samples, combinations=combinations
        )
        for info in infos
    }
