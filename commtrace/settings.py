"""Settings of a project, from `[tool.commtrace]` of its pyproject.toml.

    [tool.commtrace]
    detail = "collective"                 # default detail: "op" or "collective"
    libraries = ["my_trainer"]            # packages whose lines are not the user's own
    own_packages = ["my_model"]           # installed packages whose lines are
    link = "400 Gbit/s"                   # speed of a rank's link, or a table of speeds by mesh
                                          # axis or group: link = {tp = "450 GB/s", "*" = "50 GB/s"}

    [tool.commtrace.thresholds]           # of findings, see THRESHOLDS
    small_bytes = 16_000

    [tool.commtrace.kernels]              # kinds of a library's own communication kernels, by
    "*my_all?reduce*kernel*" = "all_reduce"    # patterns of their whole names

    [[tool.commtrace.muted]]              # known, intended findings
    rule = "outside_modules"
    module = "head.*"                     # and source = "train.py:*"; patterns, "*" by default
    reason = "the loss is averaged by hand"

The file is the nearest in the current folder or above it. A mistake in the table is a
SettingsError, which names the place.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from commtrace.collective_table import KINDS
from commtrace.errors import SettingsError, UsageError, unknown_name
from commtrace.units import bytes_per_s_of_text

tomllib: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
FILE = "pyproject.toml"
TABLE = "tool.commtrace"
DETAILS = ("op", "collective")
LIBRARIES_VARIABLE = "COMMTRACE_LIBRARIES"
"""Environment variable with further libraries, separated by `,`."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """Number from which on a rule reports a finding."""

    default: float
    meaning: str


THRESHOLDS: Mapping[str, Threshold] = MappingProxyType(
    {
        "small_bytes": Threshold(64_000, "small_messages: messages below this size are small"),
        "many_per_step": Threshold(
            16, "small_messages: minimum number of them in a phase of a step"
        ),
        "straggler_share": Threshold(
            0.02,
            "straggler, stall, serial_receives, serial_sends: minimum cost, as a part of the "
            "steps' time",
        ),
        "straggler_ratio": Threshold(
            5, "straggler: minimum ratio of its delay to every other rank's"
        ),
        "straggler_spread": Threshold(
            4, "straggler: minimum number of calls that the delay spreads over"
        ),
        "stall_factor": Threshold(10, "stall: minimum ratio of the delay to the median delay"),
        "imbalance_share": Threshold(
            0.15, "load_imbalance: minimum cost, as a part of the steps' time"
        ),
        "cores_share": Threshold(
            0.05, "shared_cores: minimum time without a core, as a part of the steps' time"
        ),
        "overlap_share": Threshold(
            0.05, "overlap_lost: minimum time that could be hidden, as a part of the steps' time"
        ),
        "metric_share": Threshold(
            0.05,
            "metrics_each_step, broadcast_buffers: minimum time blocked by it, as a part of the "
            "steps' time",
        ),
        "dependent_share": Threshold(
            0.15, "dependent_communication: minimum transfer, as a part of the steps' time"
        ),
        "growth_share": Threshold(0.25, "growing_steps: minimum growth of the steps' time"),
        "slow_link_share": Threshold(
            0.05, "slow_link: minimum time lost, as a part of the steps' time"
        ),
        "single_unit_share": Threshold(
            0.05, "single_unit: minimum time blocked by it, as a part of the steps' time"
        ),
        "copied_bytes": Threshold(64_000_000, "copied_gradients: minimum size of the copy"),
        "bubble_share": Threshold(
            0.1, "pipeline_bubbles: minimum idle time of a cause, as a part of the pipeline's time"
        ),
        "schedule_share": Threshold(
            0.3, "pipeline_bubbles: the same of the schedule itself, even without delays"
        ),
        "idle_share": Threshold(
            0.4, "pipeline_bubbles: the same of several causes together, beyond the schedule's"
        ),
        "routing_ratio": Threshold(
            1.5, "imbalance: minimum ratio of a rank, expert or source to the mean"
        ),
    }
)


FORMER_RULES: Mapping[str, str] = MappingProxyType(
    {
        "gathered_again": "repeated_all_gather",
        "late_rank": "straggler",
        "reduced_again": "repeated_reduction",
        "reduced_to_be_cut": "all_reduce_then_shard",
        "replicated": "replication_fallback",
        "uneven_work": "load_imbalance",
        "unneeded_flags": "unused_parameter_flags",
        "wide_types": "float32_messages",
    }
)
"""Names of rules in earlier versions, still accepted in settings and by `--fail-on`."""
FORMER_THRESHOLDS: Mapping[str, str] = MappingProxyType(
    {
        "late_odds": "straggler_ratio",
        "late_share": "straggler_share",
        "late_spread": "straggler_spread",
        "uneven_share": "imbalance_share",
    }
)
"""Names of thresholds in earlier versions, still accepted in settings."""
EVERY_LINK = "*"
"""Name of the link of all groups that have none of their own."""
MOST_THRESHOLD = 1e18
"""No size, time or share is larger, and products with it are finite."""


@dataclass(frozen=True, slots=True)
class Muted:
    """Findings of a rule to suppress, if module and source line match the patterns."""

    rule: str
    reason: str
    module: str = "*"
    source: str = "*"

    def mutes(self, rule: str, module: str, source: str) -> bool:
        """Return whether a finding is muted; a source pattern may omit leading folders."""
        is_at_source = fnmatchcase(source, self.source) or fnmatchcase(source, f"*/{self.source}")
        return rule == self.rule and fnmatchcase(module, self.module) and is_at_source


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a project.

    Attributes:
        path: the file; None if no file sets anything.
        detail: empty if not set.
        thresholds: those that are set.
        kernels: kinds of communication by patterns of kernel names, as of a shell: * and ?.
        link: speeds of links in bytes/s by mesh axis or group; `*` stands for all others.
    """

    path: Path | None = None
    detail: str = ""
    libraries: tuple[str, ...] = ()
    own_packages: tuple[str, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)
    link: Mapping[str, float] = field(default_factory=dict)
    muted: tuple[Muted, ...] = ()

    def threshold(self, name: str) -> float:
        """Return the value of a threshold."""
        return self.thresholds.get(name, THRESHOLDS[name].default)

    def link_bytes_per_s(self, group: str, mesh_axis: str) -> float:
        """Return the speed of the link that a group uses; nan if it is not set."""
        names = (group, mesh_axis, EVERY_LINK)
        return next((self.link[name] for name in names if name in self.link), float("nan"))


DEFAULTS = Settings()


def settings_of(folder: Path | None = None) -> Settings:
    """Return the settings for a folder, by default the current folder, and this environment.

    Raises:
        SettingsError: the file cannot be read, or a setting is unknown or invalid.
    """
    path = next((each for each in _candidates(folder) if each.is_file()), None)
    found = DEFAULTS if path is None else _read(path, _state_of(path))
    more = [name.strip() for name in os.environ.get(LIBRARIES_VARIABLE, "").split(",")]
    return replace(found, libraries=(*found.libraries, *filter(None, more)))


def _candidates(folder: Path | None) -> Iterator[Path]:
    """Yield where settings may be; nowhere if the current folder has been removed."""
    with suppress(FileNotFoundError):
        start = (folder or Path.cwd()).resolve()
        yield from (each / FILE for each in (start, *start.parents))


def _state_of(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_mtime_ns, state.st_size


@lru_cache(maxsize=16)
def _read(path: Path, state: tuple[int, int]) -> Settings:
    """Read the settings of a file; cached as long as its `state` is unchanged."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # not TOML, or beyond its reader
        raise SettingsError(
            f"cannot read the settings of {path}",
            found=f"{type(error).__name__}: {error}",
            attempt="correct the file, or run from a folder outside of that project",
        ) from error
    table = _table(path, document.get("tool", {}), "tool").get("commtrace")
    if table is None:
        return DEFAULTS
    reads: dict[str, Callable[..., Any]] = {
        "detail": _detail,
        "libraries": _names,
        "own_packages": _names,
        "thresholds": _thresholds,
        "kernels": _kernels,
        "link": _link,
        "muted": _all_muted,
    }
    known = _known(path, TABLE, _table(path, table, TABLE), reads)
    return Settings(
        path, **{name: reads[name](path, f"{TABLE}.{name}", each) for name, each in known.items()}
    )


def _refused(path: Path, place: str, value: Any, expected: str) -> SettingsError:
    return SettingsError(
        f"cannot use {place} of {path}",
        place=place,
        found=repr(value)[:200],
        why=f"it is {expected}",
    )


def _table(path: Path, value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _refused(path, place, value, "a table")
    return value


def _known(
    path: Path, place: str, table: Mapping[str, Any], names: Mapping[str, Any]
) -> Mapping[str, Any]:
    for name in table:
        if name not in names:
            error = unknown_name("setting", name, names)
            raise SettingsError(
                f"no setting {name!r} in [{place}] of {path}",
                found=error.found,
                attempt=error.attempt,
            )
    return table


def _detail(path: Path, place: str, value: Any) -> str:
    if value not in DETAILS:
        raise _refused(path, place, value, f"one of {', '.join(map(repr, DETAILS))}")
    return value


def _text(path: Path, place: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _refused(path, place, value, "a text that is not empty")
    return value


def _names(path: Path, place: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _refused(path, place, value, "a list of packages, by name")
    return tuple(_text(path, place, each) for each in value)


def _thresholds(path: Path, place: str, value: Any) -> Mapping[str, float]:
    table = _table(path, value, place)
    renamed = {FORMER_THRESHOLDS.get(name, name): number for name, number in table.items()}
    if len(renamed) < len(table):
        twice = next(name for name, new in FORMER_THRESHOLDS.items() if {name, new} <= {*table})
        expected = f"a former name of {FORMER_THRESHOLDS[twice]}, which is set too"
        raise _refused(path, f"{place}.{twice}", table[twice], expected)
    known = _known(path, place, renamed, THRESHOLDS)
    for name, number in known.items():
        is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
        # Also refuses nan, for which every comparison is false.
        if not is_number or not 0 <= number <= MOST_THRESHOLD:
            expected = f"a number from 0 to {MOST_THRESHOLD:.0e}"
            raise _refused(path, f"{place}.{name}", number, expected)
    return MappingProxyType(dict(known))


_OF_REGULAR_EXPRESSIONS = re.compile(r"^\^|\$$|\\|\(\?|\.[*+?]|\+\)|\)[*+?]|\|")
"""Parts of regular expressions, which could backtrack without end on names of a profile."""


def _kernels(path: Path, place: str, value: Any) -> Mapping[str, str]:
    table = _table(path, value, place)
    for pattern, kind in table.items():
        if not pattern or _OF_REGULAR_EXPRESSIONS.search(pattern):
            expected = "a pattern of whole names with * and ?, not a regular expression"
            raise _refused(path, place, pattern, expected)
        if kind not in KINDS:
            expected = f"one of {', '.join(KINDS)}"
            raise _refused(path, f'{place}."{pattern}"', kind, expected)
    return MappingProxyType(dict(table))


def _link(path: Path, place: str, value: Any) -> Mapping[str, float]:
    table = value if isinstance(value, dict) else {EVERY_LINK: value}
    for name, text in table.items():
        if _speed(text) is None:
            each = place if table is not value else f'{place}."{name}"'
            raise _refused(path, each, text, _A_SPEED)
    return speeds_of_links(table)


_A_SPEED = 'a speed with its unit, such as "400 Gbit/s" or "50 GB/s"'


def _speed(text: Any) -> float | None:
    found = bytes_per_s_of_text(text) if isinstance(text, str) else None
    return found if found is not None and 0 < found <= MOST_THRESHOLD else None


def speeds_of_links(link: str | Mapping[str, str]) -> Mapping[str, float]:
    """Return the speeds of links in bytes/s, by mesh axis or group; `*` stands for all others.

    Args:
        link: The speed of all links, such as `400 Gbit/s`, or speeds by mesh axis or group.

    Raises:
        UsageError: It is not a speed.
    """
    texts = link if isinstance(link, Mapping) else {EVERY_LINK: link}
    found = {}
    for name, text in texts.items():
        speed = _speed(text)
        if speed is None:
            raise UsageError(
                "cannot use the speed of a link",
                found=repr(text)[:200],
                why=f"it is {_A_SPEED}",
                attempt="400 Gbit/s, or dp=400 Gbit/s for the groups of mesh axis dp",
            )
        found[name] = speed
    return MappingProxyType(found)


def _all_muted(path: Path, place: str, value: Any) -> tuple[Muted, ...]:
    if not isinstance(value, list):
        raise _refused(path, place, value, f"a list of tables, [[{place}]]")
    return tuple(_muted(path, place, each) for each in value)


def _muted(path: Path, place: str, value: Any) -> Muted:
    names: dict[str, Any] = dict.fromkeys(("rule", "reason", "module", "source"))
    known = _known(path, place, _table(path, value, place), names)
    for name in ("rule", "reason"):
        if name not in known:
            raise SettingsError(
                f"cannot mute a finding with {path}",
                place=place,
                found=f"no {name}",
                why="a muted finding needs a rule and a reason",
            )
    texts = {name: _text(path, f"{place}.{name}", each) for name, each in known.items()}
    return Muted(**{**texts, "rule": FORMER_RULES.get(texts["rule"], texts["rule"])})


def unknown_rules(settings: Settings, rules: Sequence[str]) -> SettingsError | None:
    """Return the error for muted findings of an unknown rule, or None."""
    for each in settings.muted:
        if each.rule not in rules:
            error = unknown_name("rule", each.rule, rules)
            return SettingsError(
                f"cannot mute the rule {each.rule!r}",
                place=f"[[{TABLE}.muted]] of {settings.path}",
                found=error.found,
                attempt=error.attempt,
            )
    return None
