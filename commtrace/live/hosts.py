"""Offsets of the clocks of hosts, as far as watching shows them.

The lag of a rank's newest instant behind the watcher's clock is the time for writing and reading,
at most a second, plus the offset of the host's clock. The smallest lag of the last minute therefore
shows a clock that is off by seconds, in either direction. Data written before watching began may be
old: only instants in the future count there.
"""

from __future__ import annotations

from collections import deque

_MEMORY_S = 60.0
_MOST_SAMPLES = 600
LEAST_AHEAD_S = 0.5
LEAST_BEHIND_S = 4.0
"""Least lags that count as an offset of the clock, not as the time for writing and reading."""
_LEAST_SAMPLES = 3


class Hosts:
    """Collects the lags of hosts."""

    def __init__(self) -> None:
        self._lags: dict[str, deque[tuple[float, float]]] = {}

    def note(
        self, host: str, instant_ns: int, wall_ns: int, at_s: float, *, is_first: bool
    ) -> None:
        """Note an instant that has just been read; `is_first` if it may be old."""
        lag_s = (wall_ns - instant_ns) / 1e9
        if is_first and lag_s > -LEAST_AHEAD_S:
            return
        lags = self._lags.setdefault(host, deque(maxlen=_MOST_SAMPLES))
        if lags and lags[-1][0] == at_s:  # keep the smallest lag of one reading
            if lag_s < lags[-1][1]:
                lags[-1] = at_s, lag_s
            return
        lags.append((at_s, lag_s))
        while lags[0][0] < at_s - _MEMORY_S:
            lags.popleft()

    def ahead_s(self, host: str) -> float:
        """Return the offset of a host's clock ahead of the watcher's; 0 if none is seen."""
        lags = self._lags.get(host, ())
        least = min((lag for _, lag in lags), default=0.0)
        if least < -LEAST_AHEAD_S:
            return -least
        if least > LEAST_BEHIND_S and len(lags) >= _LEAST_SAMPLES:
            return -least
        return 0.0

    def off(self) -> dict[str, float]:
        """Return, by host, the offsets of clocks that are off, in seconds ahead."""
        return {host: ahead for host in sorted(self._lags) if (ahead := self.ahead_s(host))}
