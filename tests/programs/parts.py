"""Programs in parts, over processes that may crash."""

from __future__ import annotations

import resource
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import torch

from tests.programs.tally import Tally, tally_of

_MEMORY_BYTES = 10 << 30


def tallies(chunks: Sequence[range], processes: int) -> Iterator[Tally]:
    """Yield the tallies of all chunks; a crash of a process counts as its seed's failure."""
    context = get_context("spawn")
    left = list(chunks)
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin) as pool:
        futures = {pool.submit(tally_of, chunk): chunk for chunk in left}
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool:
                continue
            left.remove(futures[future])
    for chunk in left:
        for seed in chunk:
            with ProcessPoolExecutor(1, mp_context=context, initializer=_begin) as pool:
                try:
                    yield pool.submit(tally_of, [seed]).result()
                except BrokenProcessPool:
                    yield Tally(programs=1, failures=[(seed, "the process died", "")])


def _begin() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
