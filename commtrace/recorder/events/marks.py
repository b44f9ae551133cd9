"""Marks of last writes into storages: an operator, or a call whose result the storage holds.

The *origin* is the last call whose result the contents come from, also through other operators. It
is followed through operators whose details are recorded. Storages are known by their addresses;
those without memory, such as those of fake tensors, by their storage objects. Addresses keep no
memory alive: memory that is given out to something unseen, such as an array of numpy, keeps its
mark.
"""

from __future__ import annotations

from commtrace.recorder.events.call import Call

NO_ORIGIN = -1

OperatorMark = tuple[int, int, int]
"""An operator's number, when it ended, and the number of the call that its data comes from."""
Mark = OperatorMark | Call

NOTHING: OperatorMark = (-1, -1, NO_ORIGIN)
"""Mark of a storage that nothing known has written to."""
