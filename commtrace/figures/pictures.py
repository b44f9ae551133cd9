"""All pictures by name, with their questions: the list for the command line, page and notebooks.

`PICTURES[name].draw(frames)` runs the picture's analysis and draws the result. Callers that have
the result already call the picture's own function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from commtrace.analyze import CATALOG, Frames, notices_of
from commtrace.figures.bandwidth import bandwidth
from commtrace.figures.expert_load import expert_load
from commtrace.figures.flame import flame
from commtrace.figures.gpu_time import gpu_time
from commtrace.figures.matrix import matrix
from commtrace.figures.overlap_lost import overlap_lost
from commtrace.figures.pipeline_schedule import pipeline_schedule
from commtrace.figures.sizes import sizes
from commtrace.figures.splits import splits
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
    """A picture of a run.

    Attributes:
        name: Key in `PICTURES`.
        title: Heading of the figure.
        question: The question it answers.
        function: Draws the figure.
        analysis: Analysis whose table it draws; empty if it draws the frames themselves.
        facts: Returns keyword arguments of `function` that are taken from the run.
    """

    name: str
    title: str
    question: str
    function: Callable[..., go.Figure]
    analysis: str = ""
    facts: Callable[[Frames], dict[str, Any]] = _no_facts

    def draw(self, frames: Frames, *, theme: Theme | str = LIGHT, **more: Any) -> go.Figure:
        """Draw the picture of a run with its title, or a note of what the run lacks for it.

        `more` is passed on to the picture's function.
        """
        subject = CATALOG[self.analysis].function(frames) if self.analysis else frames
        limits = notices_of(frames, self.analysis or self.name)
        options = {"title": self.title, "because": limits[0].text if limits else ""} | more
        return self.function(subject, theme=theme, **self.facts(frames) | options)


PICTURES: dict[str, Picture] = {
    picture.name: picture
    for picture in (
        Picture("flame", "Where communication comes from", "Which module communicates?", flame),
        Picture("timeline", "When each rank communicates", "When, and who waits?", timeline),
        Picture(
            "steps",
            "Time per step",
            "How much of each step is exposed communication?",
            steps,
            "overlap",
        ),
        Picture(
            "overlap_lost",
            "Overlap lost",
            "Why was this communication not hidden?",
            overlap_lost,
            "overlap_lost",
        ),
        Picture(
            "gpu_time",
            "Time of devices",
            "Where does the time of each device go?",
            gpu_time,
            "gpu_time",
        ),
        Picture(
            "waits",
            "Wait states per rank",
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
            "bandwidth",
            "Bandwidth by size",
            "How fast are messages of each size, with the wait for late ranks and without it?",
            bandwidth,
            "bandwidth",
        ),
        Picture(
            "matrix",
            "Bytes from rank to rank",
            "How many bytes does each rank send to every other rank?",
            matrix,
            "matrix",
            _size,
        ),
        Picture(
            "pipeline_schedule",
            "Schedule of the pipeline",
            "Why is each pipeline stage idle?",
            pipeline_schedule,
            "pipeline_schedule",
        ),
        Picture(
            "splits",
            "All-to-alls by layer",
            "How much does each rank send to the experts of every other rank, in each layer?",
            splits,
            "all_to_all_splits",
        ),
        Picture(
            "expert_load",
            "Load of experts over the steps",
            "Which expert or rank is overloaded, and since when?",
            expert_load,
            "expert_load",
        ),
    )
}
