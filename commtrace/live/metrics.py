"""Metrics of a run that is watched, as Prometheus scrapes them: `METRICS`, read from a `Snapshot`.

prometheus_client writes the text when it is asked for, once per snapshot and format. Unknown values
have no sample, and while an earlier recording is read, only metrics with `is_always` have any.

Labels are bounded: ranks from `MOST_RANKS` on, groups beyond the first `MOST_GROUPS`, kinds that
are not in `collective_table`, and blamed ranks beyond the first `MOST_BLAMED` share "other".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import nan
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import TYPE_CHECKING, Any

from commtrace.collective_table import KINDS
from commtrace.errors import UsageError
from commtrace.escaping import visible
from commtrace.live.life import ASLEEP, MEANINGS
from commtrace.live.problems import HANG, MISMATCH, STRAGGLER, WAITING
from commtrace.live.snapshot import Snapshot

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

MOST_RANKS = 1024
MOST_GROUPS = 64
MOST_BLAMED = 64
MOST_LETTERS = 100
"""Letters of a label that are kept."""
OTHER = "other"
_PLAIN = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of Prometheus' text format; releases of prometheus_client name it differently."""
PROBLEMS = (HANG, WAITING, MISMATCH, STRAGGLER, *ASLEEP)
"""Values of the label `problem`."""

Samples = Iterator[tuple[tuple[str, ...], float]]
"""Values of labels, and a number; negative and nan are unknown."""


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if value >= 0]


def _most(values: Sequence[float]) -> float:
    return max(_known(values), default=nan)


def _least(values: Sequence[float]) -> float:
    return min(_known(values), default=nan)


def _mean(values: Sequence[float]) -> float:
    known = _known(values)
    return fmean(known) if known else nan


@dataclass(frozen=True, slots=True)
class Metric:
    """A family of samples.

    Attributes:
        name: its name, with the unit but without `_total` or `_info`.
        meaning: its help text.
        samples: the samples of a snapshot; several may have the same labels.
        labels: names of the labels.
        type: gauge, counter or info.
        merge: the value of several samples with the same labels; a sum is unknown if one is.
        is_always: it has samples while an earlier recording is read.
    """

    name: str
    meaning: str
    samples: Callable[[Snapshot], Samples]
    labels: tuple[str, ...] = ()
    type: str = "gauge"
    merge: Callable[[Sequence[float]], float] = _most
    is_always: bool = False

    @property
    def unit(self) -> str:
        """The unit at the end of the name, empty for a number."""
        unit = self.name.rpartition("_")[2]
        return unit if unit in ("seconds", "bytes", "ratio") else ""

    @property
    def sample_name(self) -> str:
        """The name of its samples, as queries have it."""
        return self.name + _SUFFIXES[self.type]

    def merged(self, snapshot: Snapshot) -> dict[tuple[str, ...], float]:
        """Return its value by the values of its labels."""
        if snapshot.bytes_left and not self.is_always:
            return {}
        found: dict[tuple[str, ...], list[float]] = {}
        for labels, value in self.samples(snapshot):
            found.setdefault(labels, []).append(value)
        merged = {labels: self.merge(values) for labels, values in found.items()}
        return {labels: value for labels, value in merged.items() if value >= 0}


_SUFFIXES = {"gauge": "", "counter": "_total", "info": "_info"}


def _of_run(attribute: str) -> Callable[[Snapshot], Samples]:
    """Return the sample of an attribute of `Snapshot`."""

    def samples(snapshot: Snapshot) -> Samples:
        yield (), getattr(snapshot, attribute)

    return samples


def _run(snapshot: Snapshot) -> Samples:
    yield (_text(Path(snapshot.folder).absolute().name),), 1.0


def _at(snapshot: Snapshot) -> Samples:
    yield (), snapshot.at_ns / 1e9


def _world(snapshot: Snapshot) -> Samples:
    yield (), snapshot.world_size or -1


def _states(snapshot: Snapshot) -> Samples:
    num = Counter(each.life for each in snapshot.ranks)
    for state in MEANINGS:
        yield (state,), num[state]


def _step(snapshot: Snapshot) -> Samples:
    yield (), snapshot.steps.step


def _step_duration(snapshot: Snapshot) -> Samples:
    yield (), 1 / snapshot.steps.per_s


def _of_ranks(attribute: str) -> Callable[[Snapshot], Samples]:
    """Return the samples of an attribute of `RankState`."""

    def samples(snapshot: Snapshot) -> Samples:
        for each in snapshot.ranks:
            label = str(each.rank) if each.rank < MOST_RANKS else OTHER
            yield (label,), getattr(each, attribute)

    return samples


def _late(snapshot: Snapshot) -> Samples:
    for each in snapshot.stragglers:
        yield (str(each.rank),), each.share


def _of_traffic(attribute: str) -> Callable[[Snapshot], Samples]:
    """Return the samples of an attribute of `GroupTraffic`."""

    def samples(snapshot: Snapshot) -> Samples:
        labels = _group_labels(snapshot)
        for each in snapshot.traffic:
            kind = each.kind if each.kind in KINDS else OTHER
            yield (kind, labels[each.group]), getattr(each, attribute)

    return samples


def _missing(snapshot: Snapshot) -> Samples:
    labels = _group_labels(snapshot)
    for each in snapshot.groups:
        yield (labels[each.label],), len(each.missing)


def _waiting(snapshot: Snapshot) -> Samples:
    labels = _group_labels(snapshot)
    for each in snapshot.groups:
        yield (labels[each.label],), each.for_s


def _problems(snapshot: Snapshot) -> Samples:
    found = {each.problem for each in snapshot.problems}
    for problem in PROBLEMS if snapshot.ranks else ():
        yield (problem,), float(problem in found)


def _since(snapshot: Snapshot) -> Samples:
    for each in snapshot.problems:
        yield (each.problem,), each.for_s


def _blamed(snapshot: Snapshot) -> Samples:
    for problem in PROBLEMS:
        found = [each.ranks for each in snapshot.problems if each.problem == problem]
        for place, rank in enumerate(dict.fromkeys(rank for ranks in found for rank in ranks)):
            yield (problem, str(rank) if place < MOST_BLAMED else OTHER), 1.0


METRICS = (
    Metric(
        "commtrace_run", "Folder of the run.", _run, ("run",), "info", is_always=True,
    ),
    Metric(
        "commtrace_snapshot_timestamp_seconds",
        "Unix time of the state, by the clock of the watching machine.", _at, is_always=True,
    ),
    Metric(
        "commtrace_unread_bytes",
        "Earlier recording that is still to be read; until then, no metric below has a value.",
        _of_run("bytes_left"), is_always=True,
    ),
    Metric("commtrace_world_size", "Ranks of the program, as far as is known.", _world),
    Metric("commtrace_ranks", "Recorded ranks in a state.", _states, ("state",)),
    Metric("commtrace_step", "Number of the last step that has ended.", _step),
    Metric(
        "commtrace_step_duration_seconds",
        "Mean of the steady steps among the last 10; a step lasts for the median over its ranks.",
        _step_duration,
    ),
    Metric(
        "commtrace_rank_step", "Number of the last step that a rank has ended; other: the least.",
        _of_ranks("step"), ("rank",), merge=_least,
    ),
    Metric(
        "commtrace_rank_step_duration_seconds",
        "Duration of the last step that a rank has ended; other: the longest.",
        _of_ranks("step_s"), ("rank",),
    ),
    Metric(
        "commtrace_blocked_ratio",
        "Part of the last 10 seconds in which ranks were blocked in communication; the mean.",
        _of_run("blocked_share"),
    ),
    Metric(
        "commtrace_rank_blocked_ratio",
        "Part of the last 10 seconds in which a rank was blocked in communication; other: the "
        "mean.", _of_ranks("blocked_share"), ("rank",), merge=_mean,
    ),
    Metric(
        "commtrace_rank_stuck_seconds",
        "Time for which a rank has waited for a call in flight, or made no other; other: the "
        "longest.", _of_ranks("stuck_s"), ("rank",),
    ),
    Metric(
        "commtrace_rank_late_ratio",
        "Part of the last 10 seconds in which all other members of a group waited for a rank, of "
        "ranks that stand out.", _late, ("rank",),
    ),
    Metric(
        "commtrace_sent_bytes",
        "Bytes that the ended calls of a kind and group have sent under the ring algorithm.",
        _of_traffic("sent_bytes"), ("kind", "group"), "counter", merge=sum,
    ),
    Metric(
        "commtrace_calls", "Calls of a kind and group that have ended, of all ranks.",
        _of_traffic("num_calls"), ("kind", "group"), "counter", merge=sum,
    ),
    Metric(
        "commtrace_rank_sent_bytes",
        "Bytes that the ended calls of a rank have sent; other: the sum.",
        _of_ranks("sent_bytes"), ("rank",), "counter", merge=sum,
    ),
    Metric(
        "commtrace_group_missing_ranks",
        "Members that have not issued the oldest collective in flight of a group.",
        _missing, ("group",), merge=sum,
    ),
    Metric(
        "commtrace_group_wait_seconds",
        "Time since the first member arrived at the oldest collective in flight of a group.",
        _waiting, ("group",),
    ),
    Metric(
        "commtrace_problem", "1 if the run has the problem now, 0 if it does not.", _problems,
        ("problem",),
    ),
    Metric(
        "commtrace_problem_seconds", "Time since the problem began.", _since, ("problem",),
    ),
    Metric(
        "commtrace_problem_ranks",
        "1 for each rank that is blamed or concerned; other: the number of further ranks.",
        _blamed, ("problem", "rank"), merge=sum,
    ),
)  # fmt: skip
"""Every metric, in the order of the text."""


def _text(text: str) -> str:
    return visible(text[:MOST_LETTERS])


def _group_labels(snapshot: Snapshot) -> dict[str, str]:
    """Return the bounded label of each group by its label in the snapshot."""
    known = (each.group for each in snapshot.traffic), (each.label for each in snapshot.groups)
    labels = {name: _text(name) for names in known for name in names}
    own = set(islice(dict.fromkeys(labels.values()), MOST_GROUPS))
    return {name: label if label in own else OTHER for name, label in labels.items()}


@dataclass(frozen=True, slots=True)
class _Collector:
    """Collects the families of a snapshot, and keeps their text by its content type."""

    snapshot: Snapshot | None = None
    texts: dict[str, bytes] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def collect(self) -> Iterator[Family]:
        from prometheus_client import core

        makers: dict[str, Any] = {
            "gauge": core.GaugeMetricFamily,
            "counter": core.CounterMetricFamily,
        }
        if self.snapshot is None:
            return
        for metric in METRICS:
            merged = metric.merged(self.snapshot)
            if metric.type == "info":
                facts = dict(zip(metric.labels, *merged, strict=True))
                yield core.InfoMetricFamily(metric.name, metric.meaning, facts)
                continue
            family = makers[metric.type](
                metric.name, metric.meaning, labels=metric.labels, unit=metric.unit
            )
            for labels, value in merged.items():
                family.add_metric(labels, value)
            yield family


class RunMetrics:
    """Metrics of the latest snapshot, as text.

    Raises:
        UsageError: prometheus_client is not installed.
    """

    def __init__(self) -> None:
        try:
            from prometheus_client import exposition
            from prometheus_client.openmetrics import exposition as openmetrics
        except ImportError as error:
            raise UsageError(
                "cannot serve metrics",
                found="no prometheus_client",
                why="it is not among the packages that commtrace installs by itself",
                attempt="pip install 'commtrace[metrics]'",
            ) from error
        self._openmetrics = openmetrics.CONTENT_TYPE_LATEST, openmetrics.generate_latest
        self._plain = _PLAIN, exposition.generate_latest
        self._latest = _Collector()

    def update(self, snapshot: Snapshot) -> None:
        """Replace the snapshot; scrapes in progress go on with the former one."""
        self._latest = _Collector(snapshot)

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return the text and its content type, by the header `Accept` of a request.

        Before the first snapshot, the text is empty.
        """
        is_open = "application/openmetrics-text" in accept
        content_type, written = self._openmetrics if is_open else self._plain
        latest = self._latest
        with latest.lock:
            if content_type not in latest.texts:
                latest.texts[content_type] = written(latest)
            return latest.texts[content_type], content_type
