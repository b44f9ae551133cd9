"""Geometry of the timeline: a row per rank, whose upper part has its calls and the rest its lanes.

row 0   calls of rank 0           from -0.5 to -0.5 + calls
        lanes of its kernels      from there to 0.5
row 1   calls of rank 1           ...
"""

from __future__ import annotations

from dataclasses import dataclass

_CALL_PIXELS, _LEAST_CALL_PIXELS = 46, 15
_LANE_PIXELS, _LEAST_LANE_PIXELS = 15, 4
_MOST_PIXELS = 1000
LABELLED_PIXELS = 12
"""Height of a lane from which on it has a label."""


@dataclass(frozen=True, slots=True)
class TimelineRows:
    """Rows of a timeline; without lanes, the calls fill a rank's row.

    Attributes:
        call_pixels: Height of a rank's calls.
        lane_pixels: Height of a lane.
        num_lanes: Number of lanes of a rank.
    """

    call_pixels: float
    lane_pixels: float = 0.0
    num_lanes: int = 0

    @classmethod
    def of(cls, num_ranks: int, num_lanes: int = 0) -> TimelineRows:
        """Return the rows of a figure that is not much higher than a screen."""
        num_ranks = max(num_ranks, 1)
        calls = max(min(_CALL_PIXELS, _MOST_PIXELS / num_ranks), _LEAST_CALL_PIXELS)
        if not num_lanes:
            return cls(calls)
        lane = max(min(_LANE_PIXELS, _MOST_PIXELS / (num_ranks * num_lanes)), _LEAST_LANE_PIXELS)
        return cls(calls, lane, num_lanes)

    @property
    def pixels(self) -> float:
        """Height of a rank's row; behind its lanes, half a lane is free."""
        return self.call_pixels + self.lane_pixels * self._num_free

    @property
    def calls(self) -> float:
        """Part of a rank's row that its calls take."""
        return self.call_pixels / self.pixels

    @property
    def middle(self) -> float:
        """Middle of the calls, as an offset to the rank's row."""
        return (self.calls - 1) / 2

    @property
    def steps(self) -> float:
        """Middle of the steps, above the first row."""
        return -0.5 - 0.4 * self.calls

    @property
    def step_height(self) -> float:
        """Height of a step."""
        return 0.48 * self.calls

    @property
    def top(self) -> float:
        """Upper end of the steps' row."""
        return -0.5 - 0.7 * self.calls

    @property
    def lane_height(self) -> float:
        """Part of a rank's row that a lane takes."""
        return (1 - self.calls) / self._num_free if self.num_lanes else 0.0

    @property
    def _num_free(self) -> float:
        return self.num_lanes + 0.5 if self.num_lanes else 0.0

    def lane(self, place: float) -> float:
        """Return the middle of a lane, by its number from 0, as an offset to the rank's row."""
        return self.calls - 0.5 + (place + 0.5) * self.lane_height
