"""Divergence of ranks before a fault: the first place at which one does something else.

sides         the ranks of a fault by what they called
sequences     the calls of two ranks side by side, and the last ones that agree
branches      the statement in the source that leads to one line rather than to another
branching     the statements by which two ranks parted, in words
places        lines at which calls are made, or from which what makes them is called
events        what happened on the host of one rank only
description   one divergence in words
verdict       a fault in one line
divergence    the table
"""

from commtrace.analyze.divergence.divergence import DIVERGENCES, divergences, lines_of, of_fault
from commtrace.analyze.divergence.verdict import verdict_of

__all__ = ["DIVERGENCES", "divergences", "lines_of", "of_fault", "verdict_of"]
