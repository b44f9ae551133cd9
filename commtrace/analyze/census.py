"""Census of a run: how many of its calls have a known value in each column, in one pass.

Notices, needs of rules, and facts read it, so that none of them passes over all calls by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pandas as pd

from commtrace.analyze.arrivals import arrivals
from commtrace.analyze.cached_per_run import of_run
from commtrace.analyze.frame import Frames
from commtrace.analyze.known import PartialSum, partial_sum

_NUMBERS = ("payload_bytes", "wire_bytes", "blocked_ns", "complete_ns", "issue_ns", "step")
_TEXTS = ("source_file", "source_spec", "group", "region", "op", "carries")
_SUMMED = ("payload_bytes", "wire_bytes", "blocked_ns")
WAIT = "wait_ns"
"""Column of `arrivals` that is counted beside those of table `comm`."""


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
    sums: dict[str, PartialSum] = field(default_factory=dict)

    @property
    def num_calls(self) -> int:
        """Number of calls."""
        return self.kinds.total()

    def unknown_kinds(self, column: str) -> list[str]:
        """Return the kinds of the calls of unknown value in a column."""
        return sorted({kind for name, kind in self.unknown if name == column})

    def add(self, other: Census) -> Census:
        """Return this census with the counts of other calls added."""
        self.num_ops += other.num_ops
        self.num_kernels += other.num_kernels
        self.num_fingerprints += other.num_fingerprints
        self.num_unlaunched += other.num_unlaunched
        self.num_ended += other.num_ended
        for name in ("known", "ranks", "kinds", "dtypes", "phases", "in_module", "unknown"):
            getattr(self, name).update(getattr(other, name))
        for name, each in other.sums.items():
            self.sums[name] = self.sums[name] + each if name in self.sums else each
        return self


@of_run
def census(frames: Frames) -> Census:
    """Return the census of a run."""
    total = Census()
    for part in frames.by_ranks(_of_part):
        total.add(part)
    return total


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
        sums={name: partial_sum(comm[name]) for name in _SUMMED} | {WAIT: partial_sum(wait)},
    )


def _counts(values: pd.Series) -> Counter[str]:
    """Return how often each value occurs; values that do not are left out."""
    return Counter({str(name): int(num) for name, num in values.value_counts().items() if num})


def in_module(comm: pd.DataFrame) -> pd.Series:
    """Return a mask of the calls made in a module; the root module has no path, but a class."""
    return (comm["module"] != "") | (comm["module_class"] != "")


def any_call(frames: Frames, selects: Callable[[pd.DataFrame], pd.Series]) -> bool:
    """Return True if a mask of rows of table `comm` selects a call of the run."""
    return any(frames.by_ranks(_any_of_part, selects))


def _any_of_part(part: Frames, selects: Callable[[pd.DataFrame], pd.Series]) -> bool:
    return bool(selects(part.comm).any())
