"""Explanation of a communication call: its place, its reason, its payload, and its peers.

    story = explain(frames, find_call(frames, "0:92"))
    story.why.source_spec, story.peers[-1].rank

`find_call` resolves text to a row of table `comm`; `explain` collects all that is known about it.
Anything that the trace does not know about the call is listed in `story.unknown`, with the reason;
nothing is guessed.
"""

from __future__ import annotations

from commtrace.analyze.story.peers import Peer
from commtrace.analyze.story.pick import NAMED, find_call
from commtrace.analyze.story.story import CallGroup, Story, Suggestion, Time, Where, explain
from commtrace.analyze.story.why import CallReason, Candidate, EnclosingOperator, Step
from commtrace.analyze.waits.lateness import Lateness

__all__ = [
    "NAMED",
    "CallGroup",
    "CallReason",
    "Candidate",
    "EnclosingOperator",
    "Lateness",
    "Peer",
    "Step",
    "Story",
    "Suggestion",
    "Time",
    "Where",
    "explain",
    "find_call",
]
