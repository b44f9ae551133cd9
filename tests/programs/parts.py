"""Programs in parts, over processes that may crash."""

from __future__ import annotations

import resource
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context

import torch

from tests.programs.tally import Tally, tally_of

_MEMORY_BYTES = 10 << 30


def tallies(chunks: Sequence[range], processes: int) -> Iterator[Tally]:
    """Yield the tallies of all chunks; a crash of a process counts as its seed's failure."""
    left = list(chunks)
    while left:
        yield from _until_a_crash(left, processes)
        suspects, left = left[: 2 * processes], left[2 * processes :]
        for chunk in suspects:
            for seed in chunk:
                yield _on_its_own(seed)


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, get_context("spawn"), initializer=_begin)


def _until_a_crash(left: list[range], processes: int) -> Iterator[Tally]:
    """Yield tallies and remove their chunks from `left`.

    After a crash the chunks that may have caused it are the first: they are begun in order.
    """
    with _pool(processes) as pool:
        futures = {pool.submit(tally_of, chunk): chunk for chunk in left}
        for future in as_completed(futures):
            with suppress(BrokenProcessPool):
                tally = future.result()
                left.remove(futures[future])
                yield tally


def _on_its_own(seed: int) -> Tally:
    with _pool(1) as pool:
        try:
            return pool.submit(tally_of, [seed]).result()
        except BrokenProcessPool:
            return Tally(programs=1, failures=[(seed, "the process died", "")])


def _begin() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
