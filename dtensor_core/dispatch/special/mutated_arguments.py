"""The arguments that an operator writes to, by its schema.

They are named by position, or by name for `out=`. Used by `make_entry`, for a call not seen before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.dispatch.arguments import Args, Kwargs
from dtensor_core.dispatch.special.inplace_writeback import does_not_fit
from dtensor_core.errors import RuleError
from dtensor_core.operators.rules.call import Call
from dtensor_core.propagate import Fixed
from dtensor_core.spec import Spec
from dtensor_core.torch_internals.dispatcher import OpOverload


def mutated_arguments(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[int | str, ...]:
    """Return the arguments that the call writes to: positions, or names of `out=`."""
    if not op._schema.is_mutable:
        return ()
    found: list[int | str] = []
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            if position < len(args):
                found.append(position)
            elif argument.name in kwargs:
                found.append(argument.name)
    return tuple(found)


def returned(op: OpOverload, written: Sequence[int | str]) -> tuple[int | str, ...]:
    """Return the written arguments that are results; all of them if nothing is returned."""
    if not written:
        return ()
    aliases = [_alias(each) for each in op._schema.returns]
    schema = dict(enumerate(op._schema.arguments)) | {a.name: a for a in op._schema.arguments}
    return tuple(place for place in written if not aliases or _alias(schema[place]) in aliases)


def written_aside(
    op: OpOverload, written: Sequence[int | str], returned: Sequence[int | str]
) -> tuple[int | str, ...]:
    """Return the written arguments that are not results, such as running statistics."""
    if not op._schema.returns:
        return tuple(written)
    return tuple(place for place in written if place not in returned)


def _alias(argument: Any) -> Any:
    """Return the alias set that an argument shares with a result in the same memory."""
    return argument.alias_info and tuple(argument.alias_info.before_set)


def only_place(op: OpOverload, written: Sequence[int | str], args: Args) -> int | None:
    """Return the position of the DTensor that an in-place operator returns, or None."""
    if op._schema.returns and len(written) == 1 and isinstance(written[0], int):
        return written[0] if hasattr(args[written[0]], "_spec") else None
    return None


def fixed_arguments(call: Call, written: Sequence[int | str]) -> list[Fixed]:
    """Return the arguments whose layout is fixed because they are written, with their results."""
    results = {_alias(each): number for number, each in enumerate(call.op._schema.returns)}
    schema = dict(enumerate(call.op._schema.arguments)) | {
        argument.name: argument for argument in call.op._schema.arguments
    }
    fixed: list[Fixed] = []
    for place in written:
        spec = call.args[place] if isinstance(place, int) else call.kwargs[place]
        if not isinstance(spec, Spec):
            continue
        result = results.get(_alias(schema[place]))
        result = None if result is None or result >= len(call.outputs) else result
        whose = call.number_at(place) if isinstance(place, int) else None
        if result is not None and call.outputs[result].shape != spec.shape:
            raise does_not_fit(call.op, spec, call.outputs[result].shape)
        if whose is not None:
            fixed.append(Fixed(whose, spec.placements, result))
    return fixed


def functional_form(op: OpOverload) -> OpOverload:
    """Return the out-of-place form of an in-place operator."""
    packet = getattr(torch.ops.aten, op._schema.name.removeprefix("aten::").removesuffix("_"))
    wanted = [str(argument.type) for argument in op._schema.arguments]
    for name in packet.overloads():
        found = getattr(packet, name)
        if [str(argument.type) for argument in found._schema.arguments] == wanted:
            return found
    raise RuleError(f"{op} changes a shape in place and has no out-of-place form")
