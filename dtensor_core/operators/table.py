"""The table of operators: name -> row, gathered from the families.

A row is named after the operator without namespace, overload or in-place underscore, so `add`
serves `add.Tensor`, `add_.Scalar` and `add.out`. A row `max.dim` takes precedence over `max`, and
also serves `max.dim_out`. An operator without a row that torch tags as pointwise gets the pointwise
rule. Others have no rule: `dispatch.special.decomposition` decomposes them if that communicates
less; otherwise they run on full tensors, and the gathers are announced.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

import torch

from dtensor_core import operators
from dtensor_core.errors import NotationError
from dtensor_core.operators.pointwise.rule import ROWS as POINTWISE
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.elementwise import OPAQUE
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.scaling import exact
from dtensor_core.operators.rules.sharding_rule import ShardingRule
from dtensor_core.torch_internals.dispatcher import OpOverload

# Folders beside this module that are no families.
_SHARED = ("kernels", "rules")
FAMILIES = {
    name: importlib.import_module(f"{operators.__name__}.{name}.rule")
    for _, name, is_folder in pkgutil.iter_modules(operators.__path__)
    if is_folder and name not in _SHARED
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
    """Replace the row of an overload by a user's."""
    TABLE[_names(op)[0]] = row


@lru_cache(maxsize=4096)
def _names(op: OpOverload) -> tuple[str, ...]:
    """Return the possible names of a row for an operator, the most specific first.

    Elementwise operators of `prims`, which forward-mode derivatives use, map to `aten` operators.
    """
    name = op._schema.name.removeprefix("aten::")
    if name.removeprefix("prims::") in POINTWISE:
        name = name.removeprefix("prims::")
    base = name.removesuffix("_") if op._schema.is_mutable else name
    key = f"{base}.{op._overloadname}"
    return key, key.removesuffix("_out"), key.rpartition(".")[0]


def name_of(op: OpOverload) -> str | None:
    """Return the name of the row that serves an operator, or None."""
    return next((name for name in _names(op) if name in TABLE), None)


def row_of(op: OpOverload) -> Row | None:
    """Return the row that serves an operator, or None."""
    name = name_of(op)
    if name is not None:
        return TABLE[name]
    return OPAQUE if torch.Tag.pointwise in op.tags else None


def rule_of(call: Call) -> ShardingRule | None:
    """Return the rule of a call, or None if its operator has none."""
    row = row_of(call.op)
    rule = row.build(call) if row else None
    return exact(rule, call) if rule else None
