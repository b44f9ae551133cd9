"""Clock of the recorder: monotonic nanoseconds, and their offset from wall time.

All processes of a running system share this clock. Their times compare exactly once each spool
states the clock's offset from the Unix epoch (`epoch_ns`) and the system it ran on (`boot`).
Processes of different systems compare as well as their wall clocks do.
"""

from __future__ import annotations

from time import perf_counter_ns, time_ns

now = perf_counter_ns

_NUM_READINGS = 5


def epoch_ns() -> int:
    """Return the number of ns to add to `now()` to get nanoseconds since the Unix epoch."""
    readings = []
    for _ in range(_NUM_READINGS):
        before, wall, after = now(), time_ns(), now()
        readings.append((after - before, wall - (before + after) // 2))
    # The shortest reading leaves the least doubt about when the wall clock was read.
    return min(readings)[1]
