"""Census of a run: how many of its calls have a known value in each column, in a single pass.

Notices, needs of rules, and facts read it, so that none of them passes over all calls by itself.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import pandas as pd

from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.measures.selections import SELECTIONS
from commtrace.analyze.run.cached_per_run import of_each_part, of_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.known import PartialSum, partial_sum

_NUMBERS = (
    *("payload_bytes", "wire_bytes", "blocked_ns", "complete_ns", "issue_ns", "step"),
    "run_delay_ns",
)
_TEXTS = ("source_file", "source_spec", "group", "region", "op", "carries")
_SUMMED = ("payload_bytes", "wire_bytes", "blocked_ns")
WAIT = "wait_ns"
"""Column of `arrivals` that is counted beside the columns of table `comm`."""


@dataclass(slots=True)
class Census:
    """Counts of calls; they are to be added up only.

    Attributes:
        num_ops: Number of operators.
        num_kernels: Number of kernels.
        num_fingerprints: Number of rows of table `fingerprints`.
        num_unlaunched: Number of kernels of unknown launch.
        num_ended: Number of calls of unknown blocked time that are known to have ended.
        known: Number of calls with a known value, by column.
        ranks: Number of calls, by rank.
        kinds: Number of calls, by kind.
        dtypes: Number of calls, by element type.
        phases: Number of calls, by phase.
        in_module: Number of calls made in a module, by phase.
        unknown: Number of calls of unknown value, by column and kind.
        sums: Sum of the known values, by column.
        selected: Number of calls that each of `SELECTIONS` selects.
    """

    num_ops: int = 0
    num_kernels: int = 0
    num_fingerprints: int = 0
    num_unlaunched: int = 0
    num_ended: int = 0
    known: Counter[str] = field(default_factory=Counter)
    ranks: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)
    in_module: Counter[str] = field(default_factory=Counter)
    unknown: Counter[tuple[str, str]] = field(default_factory=Counter)
    selected: Counter[str] = field(default_factory=Counter)
    sums: dict[str, PartialSum] = field(default_factory=dict)

    @property
    def num_calls(self) -> int:
        """Number of calls."""
        return self.kinds.total()

    @property
    def has_ends(self) -> bool:
        """True if it is known when some call ended; not so in a fake process group."""
        return bool(self.known["blocked_ns"] or self.known["complete_ns"] or self.num_kernels)

    def unknown_kinds(self, column: str) -> list[str]:
        """Return the kinds of the calls of unknown value in a column."""
        return sorted({kind for name, kind in self.unknown if name == column})

    def add(self, other: Census) -> Census:
        """Return this census with the counts of other calls added."""
        for name in _FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _COUNTERS:
            getattr(self, name).update(getattr(other, name))
        for name, each in other.sums.items():
            self.sums[name] = self.sums[name] + each if name in self.sums else each
        return self

    def counts(self) -> pd.DataFrame:
        """Return the census as a table: the field, its key, and the number or sum."""
        rows = [(name, "", "", getattr(self, name), math.nan) for name in _FIELDS]
        for name in _COUNTERS:
            for key, num in getattr(self, name).items():
                column, kind = key if name == "unknown" else (str(key), "")
                rows.append((name, column, kind, num, math.nan))
        rows += [("sums", name, "", each.num_known, each.total) for name, each in self.sums.items()]
        return pd.DataFrame(rows, columns=[*_COUNTS])

    @classmethod
    def of_counts(cls, counts: pd.DataFrame) -> Census:
        """Return the census that a table of counts is of."""
        found = cls()
        sums: dict[str, tuple[int, float]] = {}
        for name, key, kind, num, total in counts.itertuples(index=False, name=None):
            if name in _FIELDS:
                setattr(found, name, num)
            elif name == "sums":
                sums[key] = num, total
            elif name == "unknown":
                found.unknown[key, kind] = num
            else:
                getattr(found, name)[int(key) if name == "ranks" else key] = num
        found.sums = {
            key: PartialSum(total, num, found.num_calls) for key, (num, total) in sums.items()
        }
        return found


_FIELDS = ("num_ops", "num_kernels", "num_fingerprints", "num_unlaunched", "num_ended")
_COUNTERS = ("known", "ranks", "kinds", "dtypes", "phases", "in_module", "unknown", "selected")
_COUNTS = ("field", "key", "kind", "num", "total")


@of_run
def census(frames: Frames) -> Census:
    """Return the census of a run."""
    total = Census()
    for counts in frames.by_ranks(_counts_of_part):
        total.add(Census.of_counts(counts))
    return total


@of_each_part
def _counts_of_part(frames: Frames) -> pd.DataFrame:
    return _of_part(frames).counts()


def _of_part(frames: Frames) -> Census:
    comm, kernels = frames.comm, frames.kernels
    wait = arrivals(frames)["wait_ns"]
    is_known = {
        **{name: comm[name] >= 0 for name in _NUMBERS},
        **{name: comm[name] != "" for name in _TEXTS},
        WAIT: wait >= 0,
    }
    inside = in_module(comm)
    unknown = Counter(
        {
            (name, kind): num
            for name in ("blocked_ns", "wire_bytes", WAIT)
            for kind, num in _counts(comm["kind"][~is_known[name]]).items()
        }
    )
    return Census(
        num_ops=len(frames.ops),
        num_kernels=len(kernels),
        num_fingerprints=len(frames.fingerprints),
        num_unlaunched=int((kernels["launch_ns"] < 0).sum()),
        num_ended=int((is_known["complete_ns"] & ~is_known["blocked_ns"]).sum()),
        known=Counter({name: int(mask.sum()) for name, mask in is_known.items()}),
        ranks=Counter({int(str(rank)): num for rank, num in comm["rank"].value_counts().items()}),
        kinds=_counts(comm["kind"]),
        dtypes=_counts(comm["dtype"]),
        phases=_counts(comm["phase"]),
        in_module=_counts(comm["phase"][inside]),
        unknown=unknown,
        selected=Counter({name: int(mask(comm).sum()) for name, mask in SELECTIONS.items()}),
        sums={name: partial_sum(comm[name]) for name in _SUMMED} | {WAIT: partial_sum(wait)},
    )


def _counts(values: pd.Series) -> Counter[str]:
    """Return how often each value occurs; values that do not are left out."""
    return Counter({str(name): int(num) for name, num in values.value_counts().items() if num})


def in_module(comm: pd.DataFrame) -> pd.Series:
    """Return a mask of the calls made in a module; the root module has no path, but a class."""
    return (comm["module"] != "") | (comm["module_class"] != "")
