"""Rows that a program sends to each expert, which the splits of an all-to-all do not state.

`experts(rows)` states them for the all-to-alls of its body. The recorder keeps them in column
`expert_rows`; `dtensor_core.parallel.ExpertParallel` states its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from commtrace.errors import UsageError
from commtrace.recorder.thread_state import CURRENT


@contextmanager
def experts(rows: Sequence[int]) -> Iterator[None]:
    """State the rows that this rank sends to each expert of the group in the body.

    An all-to-all with splits in the body is recorded with them. Analyses use them if they agree
    with its splits, each rank having the experts that `torch.chunk` gives it. Without a recording,
    nothing happens.

    Args:
        rows: The number of rows for each expert of the group, in order; pass the
            `tolist()` of a tensor of counts.

    Raises:
        UsageError: They are not numbers of rows.

    Example:
        >>> with experts([3, 0, 5, 1]):  # two experts on each of two ranks
        ...     pass  # dist.all_to_all_single(received, rows, [4, 2], [3, 6])
    """
    wrong = [each for each in rows if type(each) is not int or each < 0]
    if wrong:
        raise UsageError(
            "cannot state the rows of experts",
            found=f"{wrong[0]!r} among them",
            why="each expert is sent a number of rows, an integer that is not negative",
            attempt="a list of integers, such as counts.tolist()",
        )
    collectives = CURRENT.state.collectives
    before = collectives.expert_rows
    collectives.state_experts(tuple(rows))
    try:
        yield
    finally:
        collectives.state_experts(before)
