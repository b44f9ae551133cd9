"""Result of a program with a fault: the fault is located, in doubt, mislocated or missed."""

from __future__ import annotations

from collections.abc import Callable

from commtrace.analyze.values import Fault, name_of


def result_of(fault: Fault | None, place: str | Callable[[Fault], bool]) -> str:
    """Return the result, and where the fault was found instead.

    Args:
        fault: what a comparison found.
        place: the module or parameter where the fault is, or a function that recognizes it.
    """
    if fault is None:
        return "missed"
    is_there = (
        place in (fault.right["module"], fault.right["name"])
        if isinstance(place, str)
        else place(fault)
    )
    if is_there:
        return "located"
    return f"{'mislocated' if fault.is_certain else 'in doubt'}: {name_of(fault.right)}"
