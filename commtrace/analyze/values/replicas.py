"""Tensors whose replicas should be equal on several ranks and are not, in a single run.

Replicas are equal bit for bit as long as nothing is wrong: the same numbers are computed from the
same numbers, or communicated. The first tensor in time whose replicas differ is where they came
apart; later differences may follow from it.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.values.global_values import COLUMNS as OF_TENSORS
from commtrace.analyze.values.global_values import FACTS, SKETCHES, by_number, parts
from commtrace.schema import Column

_NAMES = (
    "step", "phase", "role", "module", "module_call", "name", "op", "source_file", "source_line",
    "dtype", "shape", "layout", "num_ranks", "num_differing",
)  # fmt: skip
_BY_NAME = {column.name: column for column in OF_TENSORS}

COLUMNS = (
    *(_BY_NAME[name] for name in _NAMES),
    Column("ranks", str, "", "ranks whose replica differs, `1,3`"),
    Column("difference", float, "1", "largest difference from the first replica, relative to it"),
)


@cached_per_run
def replicas(frames: Frames) -> pd.DataFrame:
    """Return a row for each tensor whose replicas differ, the first in time first."""
    table = by_number(frames)
    differing = table[table["num_differing"] > 0]
    if differing.empty:
        return typed(pd.DataFrame(), COLUMNS)
    rows = parts(frames)
    first = rows.groupby(["tensor", "part"], sort=False)[[*FACTS]].transform("first")
    apart = ((rows[[*SKETCHES]] - first[[*SKETCHES]]) ** 2).mean(axis=1) ** 0.5
    rows = rows.assign(apart=apart / first["norm"].where(first["norm"] > 0))[rows["differs"]]
    by_tensor = rows.groupby("tensor")
    ranks = by_tensor["rank"].agg(lambda each: ",".join(map(str, sorted(set(each)))))
    return typed(differing.assign(ranks=ranks, difference=by_tensor["apart"].max()), COLUMNS)


REPLICAS = Analysis(
    "replicas",
    "Replicas that differ",
    "Which tensors should be equal on several ranks and are not?",
    replicas,
    COLUMNS,
    topic="Values",
    shown="step phase role module name op shape layout ranks difference",
    needs="fingerprints",
)
