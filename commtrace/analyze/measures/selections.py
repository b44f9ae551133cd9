"""Calls by which rules see what data a trace has, such as flags of DistributedDataParallel.

A selection is a mask of rows of table `comm`; the census counts the calls of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd

from commtrace.schema import COPIED

REDUCTIONS = ("all_reduce", "reduce_scatter")
FLAGS, EXPLAINED_FLAGS = "flags", "explained flags"
GATHERS_OF_TENSORS, GATHERS_OF_PARAMETERS = "gathers of known tensors", "gathers of parameters"
COPIED_GRADIENTS = "gradients that are copied into buckets"
NAMED_GRADIENTS, DEPENDENT = "reductions of named gradients", "with dependencies"
WRITTEN_BROADCASTS = "broadcasts of tensors whose last write is known"
TYPED = "of float32 that was cast or whose computation is known"
WITH_SPLITS, FOLLOWED = "all-to-alls with splits", "with uses of their results"
USED_BY_OPERATORS = "whose result an operator is known to use"
VALUES, VALUES_OF_OPERATORS = "values collected outside of passes", "values of known operators"


def _flags(comm: pd.DataFrame) -> pd.Series:
    return comm["carries"] == "flags"


def _explained_flags(comm: pd.DataFrame) -> pd.Series:
    return _flags(comm) & (comm["reason"] != "")


def _copied_gradients(comm: pd.DataFrame) -> pd.Series:
    return comm["reason"] == COPIED


def _gathers_of_tensors(comm: pd.DataFrame) -> pd.Series:
    return (comm["kind"] == "all_gather") & (comm["sent_id"] >= 0)


def _gathers_of_parameters(comm: pd.DataFrame) -> pd.Series:
    return (comm["kind"] == "all_gather") & (comm["parameters"] != "")


def _named_gradients(comm: pd.DataFrame) -> pd.Series:
    named = (comm["carries"] == "gradients") & (comm["parameters"] != "")
    return named & comm["kind"].isin(REDUCTIONS)


def _dependent(comm: pd.DataFrame) -> pd.Series:
    by_step = (comm["carries"] == "parameters") & (comm["step"] >= 0)
    return (
        (comm["data_ready_ns"] >= 0)
        | (comm["result_used_ns"] >= 0)
        | by_step
        | (comm["kind"] == "recv")
    )


def _with_splits(comm: pd.DataFrame) -> pd.Series:
    return (comm["kind"] == "all_to_all") & (comm["input_splits"] != "")


def _written_broadcasts(comm: pd.DataFrame) -> pd.Series:
    return (comm["kind"] == "broadcast") & (comm["data_ready_ns"] >= 0)


def _typed(comm: pd.DataFrame) -> pd.Series:
    is_known = (comm["data_ready_ns"] >= 0) | (comm["cast_dtype"] != "")
    return (comm["dtype"] == "float32") & is_known


def _followed(comm: pd.DataFrame) -> pd.Series:
    return comm["used_shard"] >= 0


def _used_by_operators(comm: pd.DataFrame) -> pd.Series:
    return comm["used_by_op_id"] >= 0


def is_value(comm: pd.DataFrame) -> pd.Series:
    """Return a mask of collectives of plain numbers outside of passes, such as of a loss."""
    return (
        comm["kind"].isin(_COLLECTING)
        & comm["dtype"].isin(_FLOATS)
        & (comm["payload_bytes"] > 0)
        & (comm["carries"] == "")
        & (comm["source_spec"] == "")
        & ~comm["phase"].isin(_TRAINING)
    )


_COLLECTING = ("all_reduce", "all_gather", "reduce", "gather")
_FLOATS = ("float64", "float32", "bfloat16", "float16")
_TRAINING = ("forward", "backward", "recompute", "optimizer")


def _values_of_operators(comm: pd.DataFrame) -> pd.Series:
    return is_value(comm) & (comm["data_op_id"] >= 0)


SELECTIONS: Mapping[str, Callable[[pd.DataFrame], pd.Series]] = {
    FLAGS: _flags,
    EXPLAINED_FLAGS: _explained_flags,
    COPIED_GRADIENTS: _copied_gradients,
    GATHERS_OF_TENSORS: _gathers_of_tensors,
    GATHERS_OF_PARAMETERS: _gathers_of_parameters,
    NAMED_GRADIENTS: _named_gradients,
    DEPENDENT: _dependent,
    WITH_SPLITS: _with_splits,
    WRITTEN_BROADCASTS: _written_broadcasts,
    FOLLOWED: _followed,
    TYPED: _typed,
    USED_BY_OPERATORS: _used_by_operators,
    VALUES: is_value,
    VALUES_OF_OPERATORS: _values_of_operators,
}
"""The selections by name."""
