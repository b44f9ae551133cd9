"""Positions in memory among the arguments of `as_strided` and its relatives.

They count from the first element of the tensor that others are views of, rules and local tensors
from the first element of the argument. `dispatch` looks such calls up by the argument's offset, and
`make_entry` subtracts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dtensor_core.dispatch.arguments import Args, Kwargs
from dtensor_core.errors import RuleError
from dtensor_core.operators.kernels.local_operator import argument_names
from dtensor_core.torch_internals.dispatcher import OpOverload

aten = torch.ops.aten
_NAME = "storage_offset"
BY_POSITION = frozenset(
    id(getattr(packet, overload))
    for packet in (aten.as_strided, aten.as_strided_, aten.as_strided_copy, aten.as_strided_scatter)
    for overload in packet.overloads()
)


def offset_of(op: OpOverload, args: Args) -> int:
    """Return the position in memory from which rules and local tensors of a call count."""
    return args[0].storage_offset() if id(op) in BY_POSITION else 0


def counted_from(
    offset: int, op: OpOverload, args: Args, kwargs: Kwargs
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with the position counted from `offset`.

    Raises:
        RuleError: The position is before it.
    """
    place = argument_names(op)[_NAME]
    given, named = list(args), dict(kwargs)
    position = given[place] if place < len(given) else named.get(_NAME)
    if position is None:
        return tuple(given), named
    if position < offset:
        raise RuleError(
            f"{op} at position {position} in memory",
            found=f"a view whose first element is at position {offset}",
            why="some positions are outside of the tensor's elements, which are all that a "
            "DTensor stores",
            hint="call it on the tensor that this is a view of",
        )
    if place < len(given):
        given[place] = position - offset
    else:
        named[_NAME] = position - offset
    return tuple(given), named


def counting_from(offset: int, op: OpOverload, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return the local function of a call with the position counted from `offset`."""

    def local(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = counted_from(offset, op, args, kwargs)
        return run(*args, **kwargs)

    return local
