"""Alarms of `commtrace watch`, and the durations and parts that are their thresholds."""

from __future__ import annotations

from dataclasses import dataclass

from commtrace.errors import UsageError


@dataclass(frozen=True, slots=True)
class Alarms:
    """Problems at which watching ends, and their thresholds; None selects the default."""

    problems: tuple[str, ...]
    hang_s: float | None
    straggler_share: float | None


def alarms_of(on_hang: str | None, on_straggler: str | None, on_mismatch: bool) -> Alarms:
    """Return the alarms that the options of `commtrace watch` ask for.

    Raises:
        UsageError: a threshold is invalid.
    """
    hang_s = seconds_of(on_hang, "--on-hang") if on_hang is not None else None
    share = share_of(on_straggler, "--on-straggler") if on_straggler is not None else None
    guarded = {"hang": hang_s is not None, "straggler": share is not None, "mismatch": on_mismatch}
    return Alarms(tuple([name for name, is_on in guarded.items() if is_on]), hang_s, share)


_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}


def seconds_of(text: str, option: str) -> float:
    """Parse a duration such as `60s`, `2m` or `90`.

    Raises:
        UsageError: it is none, or not positive.
    """
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = _UNITS.get(text.strip()[len(number) :])
    seconds = _number(number) * unit if unit is not None else float("nan")
    if not 0 < seconds < 1e9:
        raise UsageError(
            f"cannot use {option} {text}",
            why="a duration is needed",
            attempt=f"{option} 60s, or 5m",
        )
    return seconds


def share_of(text: str, option: str) -> float:
    """Parse a part such as `20%` or `0.2`.

    Raises:
        UsageError: it is none, or not between 0 and 1.
    """
    bare = text.strip().removesuffix("%")
    share = _number(bare) / (100 if bare != text.strip() else 1)
    if not 0 < share <= 1:
        raise UsageError(
            f"cannot use {option} {text}",
            why="a part of the time is needed, above 0% and up to 100%",
            attempt=f"{option} 20%",
        )
    return share


def _number(text: str) -> float:
    try:
        return float(text) if text.isascii() else float("nan")
    except ValueError:
        return float("nan")
