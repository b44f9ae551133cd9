"""Every picture by name, with its question: what the command line, the page and notebooks draw.

`PICTURES[name].draw(frames)` asks the picture's analysis and draws the answer. Who has the answer
already calls the picture's own function with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from commtrace.analyze import CATALOG, Frames, notices_of
from commtrace.analyze.notices import notices_on
from commtrace.figures.flame import flame
from commtrace.figures.matrix import matrix
from commtrace.figures.sizes import sizes
from commtrace.figures.steps import steps
from commtrace.figures.theme import LIGHT, Theme
from commtrace.figures.timeline import timeline
from commtrace.figures.waits import waits


def _no_facts(frames: Frames) -> dict[str, Any]:
    return {}


def _size(frames: Frames) -> dict[str, Any]:
    return {"num_ranks": frames.num_ranks}


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture; `analysis` is the one that it draws, empty where it draws the run itself.

    `facts` are what its function is told of the run besides.
    """

    name: str
    title: str
    question: str
    function: Callable[..., go.Figure]
    analysis: str = ""
    facts: Callable[[Frames], dict[str, Any]] = _no_facts

    def draw(self, frames: Frames, *, theme: Theme | str = LIGHT, **more: Any) -> go.Figure:
        """The picture of a run, with its title; or of what the run lacks for it.

        `more` goes to the picture's function.
        """
        subject = CATALOG[self.analysis].function(frames) if self.analysis else frames
        limits = notices_on(self.analysis or self.name, notices_of(frames))
        given = {"title": self.title, "because": limits[0] if limits else ""} | more
        given = self.facts(frames) | given
        return self.function(subject, theme=theme, **given)


PICTURES: dict[str, Picture] = {
    picture.name: picture
    for picture in (
        Picture("flame", "Where communication comes from", "Which module communicates?", flame),
        Picture("timeline", "When each rank communicates", "When, and who waits?", timeline),
        Picture(
            "steps",
            "What each step's time goes to",
            "How much of each step is exposed communication?",
            steps,
            "overlap",
        ),
        Picture(
            "waits",
            "What each rank waits for",
            "How long is each rank blocked, by waiting and by transfer?",
            waits,
            "rank_waits",
        ),
        Picture(
            "sizes",
            "Message sizes",
            "How large are the messages of each kind?",
            sizes,
            "sizes",
        ),
        Picture(
            "matrix",
            "Bytes from rank to rank",
            "How many bytes does each rank send to each other one?",
            matrix,
            "matrix",
            _size,
        ),
    )
}
