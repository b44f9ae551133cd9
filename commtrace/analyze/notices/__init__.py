"""Notices: sentences that explain why a table or picture is empty or partial.

`notices_of` takes a run and returns notices, each naming the analyses and pictures it limits.
`RULES` lists the rules, and `MINOR_RULES` those shown only beside the table or picture they
limit. A rule is a function that returns a sentence, or an empty text if nothing is lacking.

table           all rules, and what they limit
of_recording    ranks, steps and calls that a recording lacks, and its clocks
of_calls        values that calls lack
of_tables       pipelines, kernels, tensors, experts and findings
"""

from __future__ import annotations

from commtrace.analyze.notices.of_recording import replayed_note
from commtrace.analyze.notices.table import (
    EVERYTHING,
    MINOR_RULES,
    RULES,
    Notice,
    notices_of,
    notices_on,
)

__all__ = [
    "EVERYTHING",
    "MINOR_RULES",
    "RULES",
    "Notice",
    "notices_of",
    "notices_on",
    "replayed_note",
]
