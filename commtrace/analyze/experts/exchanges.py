"""All-to-alls with splits: the amount for each member, rows of experts, and the direction.

An all-to-all of a mixture of experts carries rows to the ranks of their experts (`dispatch`) or the
results back (`combine`). The rows that a rank sends in a combine are those that it has received in
the dispatch, and the other way round, so that a call with exchanged splits later in the step makes
a pair of both:

    forward     dispatch [3, 5] -> [4, 2]        combine [4, 2] -> [3, 5]
    backward    gradient of the combine          gradient of the dispatch
                         [3, 5] -> [4, 2]                [4, 2] -> [3, 5]

A gradient has the direction in which its rows travel. Without such a partner it is unknown.

Splits that do not fit the group are left out. A call without any sends every member as much, or
does not state how much; it is no exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import pandas as pd

from commtrace.analyze.measures.census import census
from commtrace.analyze.run.cached_per_run import cached_per_run, of_each_call
from commtrace.analyze.run.frame import Frames
from commtrace.torch_names import dtype_of

ALL_TO_ALL = "all_to_all"
DIRECTIONS = ("", "dispatch", "combine")
"""Names of directions by their number: unknown, to the experts, and back."""
UNKNOWN, DISPATCH, COMBINE = range(3)

_MOST_BYTES = 1 << 58


@dataclass(frozen=True, slots=True)
class Exchange:
    """One rank's part of an all-to-all.

    Attributes:
        sent: [ranks] Bytes to each member; None if unknown.
        received: [ranks] Bytes from each member; None if unknown.
        row_bytes: Size of a row; 0 if unknown.
        experts: [experts] Rows to each expert, if the program states them; else None.
    """

    sent: np.ndarray | None
    received: np.ndarray | None
    row_bytes: int
    experts: np.ndarray | None


@cached_per_run
def exchanges(part: Frames) -> pd.Series:
    """Return the `Exchange` of each all-to-all with splits, by rows of table `comm`."""
    comm = part.comm
    has_splits = (comm["input_splits"] != "") | (comm["output_splits"] != "")
    calls = comm.loc[(comm["kind"] == ALL_TO_ALL) & has_splits, _OF_EXCHANGE]
    sizes = dict(zip(part.groups["name"], part.groups["size"], strict=True))
    # Many calls are alike, and each distinct one is read once.
    known: dict[tuple[object, ...], Exchange] = {}
    found = []
    for values in calls.itertuples(index=False, name=None):
        if values not in known:
            group, *texts = values
            known[values] = _read(int(sizes.get(group, 0)), *texts)
        found.append(known[values])
    return pd.Series(found, index=calls.index, dtype=object)


_OF_EXCHANGE = [
    *("group", "dtype", "input_shapes", "payload_bytes", "input_splits", "output_splits"),
    "expert_rows",
]


def _read(
    size: int, dtype: str, shapes: str, payload: int, sent: str, received: str, experts: str
) -> Exchange:
    row_bytes = _row_bytes(shapes, dtype)
    inputs, outputs = splits_of(sent, size), splits_of(received, size)
    if not sent and payload >= 0 and size and payload % size == 0:
        inputs = np.full(size, payload // size)  # equal, since only those received are stated
    return Exchange(inputs, outputs, row_bytes, _experts(experts, inputs, row_bytes))


def splits_of(text: str, size: int = 0) -> np.ndarray | None:
    """Return the numbers of a list; None if they cannot be the splits of a group of this size."""
    numbers = [int(each) for each in text.split(",")] if text else []
    if (
        not numbers
        or (size and len(numbers) != size)
        or not (0 <= min(numbers) <= max(numbers) <= _MOST_BYTES)
    ):
        return None
    return np.asarray(numbers, dtype="int64")


def equal_parts(shapes: str, dtype: str, size: int) -> np.ndarray | None:
    """Return the bytes of each of `size` equal parts of a tensor like `[8,16]`; None if unknown."""
    row_bytes = _row_bytes(shapes, dtype)
    rows = shapes.strip("[]").split(",")[0]
    if not row_bytes or not rows or ";" in shapes or int(rows) % size:
        return None
    return np.full(size, int(rows) // size * row_bytes)


def _row_bytes(shapes: str, dtype: str) -> int:
    """Return the size of a row, an entry of dim 0, of tensors like `[8,16]`; 0 if unknown."""
    rows = {tuple(shape.strip("[]").split(",")[1:]) for shape in shapes.split(";")}
    itemsize = dtype_of(dtype)[1] if dtype else 0
    if not shapes or len(rows) != 1 or itemsize <= 0:
        return 0
    size = prod(map(int, rows.pop())) * itemsize
    return size if size <= _MOST_BYTES else 0


def _experts(text: str, sent: np.ndarray | None, row_bytes: int) -> np.ndarray | None:
    """Return the rows to each expert if they agree with the splits; else None."""
    rows = splits_of(text)
    if rows is None or sent is None or not row_bytes:
        return None
    of_ranks = np.bincount(ranks_of_experts(len(rows), len(sent)), rows, len(sent))
    return rows if np.array_equal(of_ranks * row_bytes, sent) else None


def ranks_of_experts(num_experts: int, size: int) -> np.ndarray:
    """Return the member that has each expert, as `torch.chunk` divides them."""
    return np.arange(num_experts) // -(-num_experts // size)


@of_each_call
def directions(frames: Frames) -> pd.Series:
    """Return the direction of each call, as its place in `DIRECTIONS`."""
    comm = frames.comm
    found = pd.Series(UNKNOWN, index=comm.index, dtype="int64", name="direction")
    if not census(frames.whole).kinds[ALL_TO_ALL]:
        return found
    every = exchanges(frames)
    calls = comm.loc[every.index, ["rank", "group", "step", "dtype", "id"]].sort_values("id")
    for _, of_group in calls.groupby(["rank", "group"], observed=True, sort=False):
        pairs = _pairs(of_group, every[of_group.index])
        for dispatch, combine in pairs:
            found[dispatch], found[combine] = DISPATCH, COMBINE
    return found


def _pairs(calls: pd.DataFrame, of_calls: pd.Series) -> list[tuple[int, int]]:
    """Return the rows of a dispatch and its combine, for each pair of a rank in a group."""
    found: list[tuple[int, int]] = []
    waiting: dict[tuple[object, ...], list[int]] = {}
    at = None
    facts = calls[["step", "dtype"]].itertuples(index=False, name=None)
    for row, exchange, (step, dtype) in zip(calls.index, of_calls, facts, strict=True):
        if step != at:
            waiting.clear()
            at = step
        if exchange.sent is None or exchange.received is None:
            continue
        unit = exchange.row_bytes or 1  # the results may be wider than the tokens
        sent, received = ((each // unit).tobytes() for each in (exchange.sent, exchange.received))
        open_calls = waiting.get((dtype, received, sent))
        if open_calls:
            found.append((open_calls.pop(), row))
        else:
            waiting.setdefault((dtype, sent, received), []).append(row)
    return found


def carries_rows(calls: pd.DataFrame) -> pd.Series:
    """Return a mask of the calls that may carry rows to experts and back.

    The amounts of a conversion of a layout, `f32[8,16] tp:S(0)`, depend on shapes and not on data.
    Integers are the counts that ranks exchange first.
    """
    is_conversion = calls["source_spec"].astype(object).str.contains("[", regex=False)
    is_count = calls["dtype"].astype(object).str.startswith("int")
    return ~(is_conversion.astype(bool) | is_count.astype(bool))
