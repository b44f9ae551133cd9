"""Rows of table `kernels`: work of devices, with its launch, its call and its operator.

The launch is the runtime's call with the same correlation; the operator is the innermost one around
it. If the launch is unknown, both are taken from the communication call that the work belongs to.
Used by `rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from commtrace.event import KernelRow
from commtrace.importers.kineto.calls import HostCall, Op
from commtrace.importers.kineto.issued_work import Joined
from commtrace.importers.kineto.launching_operators import operators_of
from commtrace.importers.kineto.spans import Gathered, Work
from commtrace.torch_names import NOT_KNOWN


def works_of(found: Gathered) -> list[Work]:
    """Return all work of the devices in order of start; the place of each is its id."""
    return sorted([*found.kernels, *found.other_work], key=_start)


def _start(work: Work) -> int:
    return work.start


def kernel_rows(
    rank: int,
    found: Gathered,
    works: Sequence[Work],
    joined: Joined,
    ops: Sequence[Op],
    epoch: int,
    device_name: Callable[[int], str],
) -> list[Any]:
    """Return the rows of the work of a rank's devices.

    Args:
        rank: The rank.
        found: Events of the rank.
        works: All work, as `works_of` returns it.
        joined: The calls of communication and of its kernels.
        ops: All operators, in order of their start.
        epoch: Instant from which the times of the rank count, in Unix ns.
        device_name: Function that returns the name of a device of a number.
    """
    places = {id(call): place for place, call in enumerate(joined.calls)}
    calls = dict(zip(map(id, found.kernels), joined.of_kernels, strict=True))
    around = operators_of(ops, found.launches, [work.correlation for work in works])
    names = {device: device_name(device) for device in {work.device for work in works}}
    rows = []
    for number, work in enumerate(works):
        call = calls.get(id(work))
        launch = found.launches.get(work.correlation)
        if launch is not None:
            thread, launch_ns = launch[0], launch[1] + epoch
            op = around.get(work.correlation)
            op_id, name = (op[0], op[2]) if op is not None else _NO_OPERATOR
        else:
            launch_ns = NOT_KNOWN
            thread, op_id, name = _place_of(call)
        rows.append(
            KernelRow(
                rank=rank,
                id=number,
                category=work.category,
                name=work.name,
                device=names[work.device],
                stream=work.stream,
                start_ns=work.start + epoch,
                duration_ns=work.end - work.start,
                launch_ns=launch_ns,
                call_id=places[id(call)] if call is not None else NOT_KNOWN,
                op_id=op_id,
                op=name.replace("::", "."),
                thread=thread,
            )
        )
    return rows


_NO_OPERATOR = NOT_KNOWN, ""


def _place_of(call: HostCall | None) -> tuple[int, int, str]:
    """Return thread, id and name of the operator of a call; unknown for other work."""
    return (call.thread, call.op_id, call.op) if call is not None else (NOT_KNOWN, *_NO_OPERATOR)
