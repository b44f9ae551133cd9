"""The table of operators: name -> row, gathered from the families.

A row is named after the operator without namespace, overload or in-place underscore, so `add`
serves `add.Tensor`, `add_.Scalar` and `add.out`; a row `max.dim` goes before `max`, and serves
`max.dim_out`. An operator without a row that torch tags as pointwise gets the pointwise rule; what
then remains has no rule: `dispatch.derive` takes it apart where that sends less, else it runs on
whole tensors, announced.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

import torch
from torch._ops import OpOverload

from dtensor_core.errors import NotationError
from dtensor_core.rules import families
from dtensor_core.rules.call import Call
from dtensor_core.rules.families import pointwise
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Rule
from dtensor_core.rules.scaling import exact

# Every module of the folder is a family.
FAMILIES = {
    name: importlib.import_module(f"{families.__name__}.{name}")
    for _, name, _ in pkgutil.iter_modules(families.__path__)
}


def _gather() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for family in FAMILIES.values():
        for name, row in family.ROWS.items():
            if name in rows:
                raise NotationError(f"operator {name} has two rows: {rows[name]} and {row}")
            rows[name] = row
    return rows


TABLE = _gather()


def replace_row(op: OpOverload, row: Row) -> None:
    """Let one overload be served by a row of the user's."""
    TABLE[_names(op)[0]] = row


@lru_cache(maxsize=4096)
def _names(op: OpOverload) -> tuple[str, ...]:
    """What a row for an operator may be named, the closest first.

    Elementwise operators of `prims`, of which forward derivatives are made, are those of `aten`.
    """
    name = op._schema.name.removeprefix("aten::")
    if name.removeprefix("prims::") in pointwise.ROWS:
        name = name.removeprefix("prims::")
    base = name.removesuffix("_") if op._schema.is_mutable else name
    key = f"{base}.{op._overloadname}"
    return key, key.removesuffix("_out"), key.rpartition(".")[0]


def name_of(op: OpOverload) -> str | None:
    """The name of the row that the table has for an operator, or None."""
    return next((name for name in _names(op) if name in TABLE), None)


def row_of(op: OpOverload) -> Row | None:
    """The row that serves an operator, or None."""
    name = name_of(op)
    if name is not None:
        return TABLE[name]
    return pointwise.OPAQUE if torch.Tag.pointwise in op.tags else None


def rule_of(call: Call) -> Rule | None:
    """The rule of a call, or None if its operator has none."""
    row = row_of(call.op)
    rule = row.build(call) if row else None
    return exact(rule, call) if rule else None
