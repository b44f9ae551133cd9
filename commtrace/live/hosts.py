"""Offsets of the clocks of hosts, as far as watching shows them.

What a rank writes is about the present: the lag of its newest instant behind the watcher's clock is
the time until it is written and read, a second at most, plus what its host's clock is behind. The
smallest lag of the last minute therefore shows a clock that is off by seconds, in either direction.
What was there before watching began may be old; only an instant in the future counts of that.
"""

from __future__ import annotations

from collections import deque

_MEMORY_S = 60.0
_MOST_SAMPLES = 600
LEAST_AHEAD_S = 0.5
LEAST_BEHIND_S = 4.0
"""Lags from which on a clock is off; below, it is the time that writing and reading take."""
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
        if lags and lags[-1][0] == at_s:  # the smallest of one reading
            if lag_s < lags[-1][1]:
                lags[-1] = at_s, lag_s
            return
        lags.append((at_s, lag_s))
        while lags[0][0] < at_s - _MEMORY_S:
            lags.popleft()

    def ahead_s(self, host: str) -> float:
        """Return how far a host's clock is ahead of the watcher's; 0 if that is not seen."""
        lags = self._lags.get(host, ())
        least = min((lag for _, lag in lags), default=0.0)
        if least < -LEAST_AHEAD_S:
            return -least
        if least > LEAST_BEHIND_S and len(lags) >= _LEAST_SAMPLES:
            return -least
        return 0.0

    def off(self) -> dict[str, float]:
        """Return the hosts whose clocks are off, with what they are ahead in seconds."""
        return {host: ahead for host in sorted(self._lags) if (ahead := self.ahead_s(host))}
