"""Selection of what is shown of a run, from the options of a command to the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selection:
    """Part of a run that is shown, and the speed that its links have; by default, the whole run.

    Attributes:
        window_ns: Time window, in ns since the start of the run.
        steps: First and last step, both included.
        ranks: The only ranks whose calls are shown individually; by default all.
        link: Speed of links, such as `400 Gbit/s`, or speeds by mesh axis or group, instead of
            the speeds in the settings.
    """

    window_ns: tuple[int, int] | None = None
    steps: tuple[int, int] | None = None
    ranks: Sequence[int] | None = None
    link: str | Mapping[str, str] | None = None


WHOLE_RUN = Selection()
