"""Operators that launched work of devices: the innermost one around each launch, on its thread.

Used by `rows`, which names them in table `kernels`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from commtrace.importers.kineto.calls import Op
from commtrace.torch_names import NOT_KNOWN


def operators_of(
    ops: Sequence[Op], launches: Mapping[int, tuple[int, int]], correlations: Iterable[int]
) -> dict[int, Op]:
    """Return the operator around each launch that has one, by correlation.

    Args:
        ops: All operators, in order of their start.
        launches: Thread and time of the launches, by correlation.
        correlations: The launches in question.
    """
    threads: dict[int, list[tuple[int, int]]] = {}
    for correlation in correlations:
        thread, instant = launches.get(correlation, _UNKNOWN)
        if thread >= 0:
            threads.setdefault(thread, []).append((instant, correlation))
    if not threads:
        return {}
    of_threads: dict[int, list[Op]] = {thread: [] for thread in threads}
    for op in ops:
        of_thread = of_threads.get(op[6])
        if of_thread is not None:
            of_thread.append(op)
    found: dict[int, Op] = {}
    for thread, launched in threads.items():
        launched.sort()
        _sweep(of_threads[thread], launched, found)
    return found


_UNKNOWN = NOT_KNOWN, 0


def _sweep(ops: Sequence[Op], launched: Sequence[tuple[int, int]], found: dict[int, Op]) -> None:
    """Enter the operators around launches of a thread, in order of time."""
    around: list[Op] = []
    place, num = 0, len(ops)
    for instant, correlation in launched:
        while place < num and ops[place][3] <= instant:
            op = ops[place]
            place += 1
            while around and around[-1][4] <= op[3]:
                around.pop()
            around.append(op)
        while around and around[-1][4] <= instant:
            around.pop()
        if around:
            found[correlation] = around[-1]
