"""Clocks of a watcher, which tests replace."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """The watcher's own clocks.

    Attributes:
        monotonic_s: seconds since any fixed time.
        wall_ns: Unix ns.
    """

    monotonic_s: Callable[[], float] = time.monotonic
    wall_ns: Callable[[], int] = time.time_ns
