"""Facts at the head of a spool and of a run, with the values that they may take.

Facts with unknown names are kept as they are. `world_size` is accepted up to `MAX_RANKS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from commtrace.errors import InvalidTraceError
from commtrace.schema import MAX_RANKS, MOST_INSTANT_NS
from commtrace.tracefile.reading import is_int

WRITE_ERROR = "write_error"
"""Name of the fact of a spool that states why a rank could not write all of it."""
WRITE_ERRORS = "write_errors"
REPLAYED = "replayed"
"""Fact of a run whose times are of a replay: the changes that it was replayed with."""
"""Name of the fact of a run that states them, each with its ranks."""

Check = Callable[[Any], bool]

_SIDES = re.compile(r"(\d{1,9}(,\d{1,9})*(;\d{1,9}(,\d{1,9})*)*)?", re.ASCII)
"""Ranks, by side if there are several."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return is_int(value) and value >= -1


def _is_rank(value: Any) -> bool:
    return is_int(value) and 0 <= value < MAX_RANKS


def _is_world_size(value: Any) -> bool:
    return is_int(value) and 1 <= value <= MAX_RANKS


def _is_instant(value: Any) -> bool:
    return is_int(value) and -MOST_INSTANT_NS <= value <= MOST_INSTANT_NS


def _are_ranks(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MAX_RANKS
        and all(_is_rank(each) for each in value)
        and len(set(value)) == len(value)
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _are_unlike_groups(value: Any) -> bool:
    return isinstance(value, list) and all(
        _are_texts(each) and len(each) == 3 and _SIDES.fullmatch(each[1]) for each in value
    )


def _is_step_count(value: Any) -> bool:
    return is_int(value) and value >= 1


def _is_segment(value: Any) -> bool:
    return is_int(value) and value >= 0


def _are_totals(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_segment, value))


def _are_steps(value: Any) -> bool:
    return isinstance(value, list) and all(is_int(each) and each >= 0 for each in value)


def _is_thread(value: Any) -> bool:
    return is_int(value) and 0 <= value < 1 << 64


def _is_exit_code(value: Any) -> bool:
    return is_int(value) and -64 <= value < 1 << 32


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


_MEANINGS: dict[Check, str] = {
    _is_text: "a string",
    _is_flag: "true or false",
    _is_count: "an integer of -1 or more",
    _is_rank: f"a rank below {MAX_RANKS:,}",
    _is_world_size: f"a number of ranks up to {MAX_RANKS:,}",
    _is_instant: "a time in nanoseconds",
    _are_ranks: f"a list of distinct ranks below {MAX_RANKS:,}",
    _are_texts: "a list of strings",
    _are_unlike_groups: "a list of groups, each with ranks as in '0,1' and a sentence",
    _is_step_count: "an integer of 1 or more",
    _is_segment: "an integer of 0 or more",
    _are_totals: "a number of calls and a number of operators",
    _are_steps: "a list of steps",
    _is_thread: "the number of a thread",
    _is_exit_code: "an exit code, or a negative signal",
    _is_object: "an object",
}

SPOOL_FACTS: dict[str, Check] = {
    "rank": _is_rank,
    "host": _is_text,
    "pid": _is_count,
    "boot": _is_text,
    "epoch_ns": _is_instant,
    "device": _is_text,
    "start_ns": _is_instant,
    "run": _is_object,
}
"""Facts that every spool has."""

CLOSING_FACTS: dict[str, Check] = {
    "end_ns": _is_instant,
    "complete": _is_flag,
    "num_dropped": _is_count,
    "num_ops_dropped": _is_count,
    "num_fingerprints_dropped": _is_count,
    "sees_completion": _is_flag,
    "clock_error_ns": _is_count,
    "partial_steps": _are_steps,
    "segment": _is_segment,
    "segment_ns": _is_instant,
    "num_before": _are_totals,
    "taken_for": _are_ranks,
    "beat_s": _is_step_count,
    "alive_ns": _is_instant,
    "main_thread": _is_thread,
    "exit_code": _is_exit_code,
    WRITE_ERROR: _is_text,
}
"""Facts that a spool may have."""

RUN_FACTS: dict[str, Check] = {
    "world_size": _is_world_size,
    "missing_ranks": _are_ranks,
    "torn_ranks": _are_ranks,
    "running_ranks": _are_ranks,
    "read_ns": _is_instant,
    "left_out_spools": _are_texts,
    REPLAYED: _is_text,
    WRITE_ERRORS: _are_texts,
    "lacks": _are_texts,
    "imported_from": _is_text,
    "imported_files": _is_count,
    "clock": _is_text,
    "command": _is_text,
    "created": _is_text,
    "torch": _is_text,
    "python": _is_text,
    "detail": _is_text,
    "process_group": _is_text,
    "ranks_from": _is_text,
    "kernels": _is_text,
    "partial_dumps": _are_ranks,
    "unsure_ranks": _are_ranks,
    "first_number": _is_count,
    "unlike_groups": _are_unlike_groups,
    "launcher": _is_text,
    "run_id": _is_text,
    "attempt": _is_count,
    "every": _is_step_count,
}
"""Facts that a run may have."""


def require_spool_facts(facts: Mapping[str, Any], summary: str) -> None:
    """Raise InvalidTraceError unless a spool has all required facts, with valid values."""
    for name in SPOOL_FACTS:
        if name not in facts:
            raise _invalid(summary, f"facts.{name}", "no such fact", SPOOL_FACTS[name])
    _require(facts, SPOOL_FACTS | CLOSING_FACTS, "facts", summary)
    require_run_facts(facts["run"], summary, "facts.run")


def require_run_facts(run: Mapping[str, Any], summary: str, place: str = "run") -> None:
    """Raise InvalidTraceError if a known fact of a run has an invalid value."""
    _require(run, RUN_FACTS, place, summary)


def _require(
    facts: Mapping[str, Any], checks: Mapping[str, Check], place: str, summary: str
) -> None:
    for name, check in checks.items():
        if name in facts and not check(facts[name]):
            raise _invalid(summary, f"{place}.{name}", repr(facts[name])[:80], check)


def _invalid(summary: str, place: str, found: str, check: Check) -> InvalidTraceError:
    return InvalidTraceError(
        summary,
        place=place,
        found=found,
        why=f"this fact must be {_MEANINGS[check]}",
        attempt="copy the file again, or record the run again",
    )
