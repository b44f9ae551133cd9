"""Operators on the last dimensions of their arguments, batched over all dimensions before.

Pooling, factorisations, interpolation: batch dimensions are sharded freely, the operator's own
dimensions are replicated. A row states how many dimensions of an argument are the operator's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.sharding_rule import Operand, ShardingRule
from dtensor_core.spec import Spec


def batched(own: int, *, linear: bool = False, **others: int) -> Row:
    """Make a row for an operator on the last `own` dims, or on `others` for named arguments."""
    text = f"b.. {' '.join(f's{n}!' for n in range(own))} -> b.. .."

    def build(call: Call) -> ShardingRule:
        widths = _widths(call, own, others)
        batch = torch.broadcast_shapes(
            *(
                shape[: max(len(shape) - width, 0)]
                for shape, width in zip(call.shapes, widths, strict=True)
            )
        )
        sizes = {f"b{dim}": size for dim, size in enumerate(batch)}
        fits = all(meta.shape[: len(batch)] == batch for meta in call.outputs)
        return ShardingRule(
            inputs=tuple(
                operand_in(shape, width, batch)
                for shape, width in zip(call.shapes, widths, strict=True)
            ),
            outputs=tuple(_result(meta.shape, len(batch)) for meta in call.outputs),
            sizes=sizes,
            blocked=frozenset() if fits else frozenset(sizes),
            terms=((0,),),
            # The mean of integers is rounded.
            algebra="linear" if linear and call.outputs[0].dtype.is_floating_point else "opaque",
        )

    return Row(build, text, "linear" if linear else "opaque")


def _widths(call: Call, own: int, others: Mapping[str, int]) -> list[int]:
    """Return the number of the operator's own dims for each tensor argument."""
    schema = [argument.name for argument in call.op._schema.arguments]
    given = [*zip(schema, call.args, strict=False), *call.kwargs.items()]
    return [others.get(name, own) for name, value in given if isinstance(value, Spec)]


def operand_in(shape: Sequence[int], width: int, batch: Sequence[int]) -> Operand:
    """Return the operand of an argument with `width` own dims after the batch dims."""
    leading = max(len(shape) - width, 0)
    first = len(batch) - leading
    names: list[tuple[str, ...]] = [
        () if shape[dim] == 1 and batch[first + dim] != 1 else (f"b{first + dim}",)
        for dim in range(leading)
    ]
    return (*names, *((),) * (len(shape) - leading))


def _result(shape: Sequence[int], num_batch: int) -> Operand:
    names = [(f"b{dim}",) for dim in range(min(num_batch, len(shape)))]
    return (*names, *((),) * (len(shape) - num_batch))
