"""Wait state of the calls of each kind, by its name in the literature (Scalasca)."""

from __future__ import annotations

from commtrace.collective_table import EVERY_RANK, EVERY_RANK_AT_ROOT, ROOT, needing

_STATES = (
    ("Wait at N x N", needing(EVERY_RANK)),
    ("Wait at Barrier", ("barrier",)),
    ("Late Broadcast", needing(ROOT)),
    ("Early Reduce", needing(EVERY_RANK_AT_ROOT)),
    ("Late Sender", ("recv",)),
    ("Late Receiver", ("send",)),
)
# A kind that is named alone has its own state, which replaces the one of its needs.
STATES = {kind: state for state, kinds in _STATES for kind in kinds}
