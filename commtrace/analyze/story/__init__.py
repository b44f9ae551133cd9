"""One communication call's story: where it stands, why it was needed, what it sent, who was late.

    story = explain(frames, find_call(frames, "0:92"))
    story.why.source_spec, story.peers[-1].rank

`find_call` says which row of table `comm` is meant, `explain` tells about it. What a trace does not
know of the call is in `story.unknown`, with the reason, and nowhere guessed.
"""

from __future__ import annotations

from commtrace.analyze.story.peers import Peer
from commtrace.analyze.story.pick import NAMED, find_call
from commtrace.analyze.story.story import Group, Story, Suggestion, Time, Where, explain
from commtrace.analyze.story.why import Candidate, Operator, Step, Why

__all__ = [
    "NAMED",
    "Candidate",
    "Group",
    "Operator",
    "Peer",
    "Step",
    "Story",
    "Suggestion",
    "Time",
    "Where",
    "Why",
    "explain",
    "find_call",
]
