"""Divergence of ranks before a fault: the first place at which one does something else.

sides         the ranks of a fault by what they called
sequences     the calls of two ranks side by side, and the last ones that agree
program_text  functions of the program, and the frames around a call
control_flow  the control-flow graph of a function
conditions    how likely ranks differ in a condition
splits        the statement of one function at which ranks took different ways
explaining    that of several functions, along the frames of the calls
branching     the branch, from the calls of both ranks, in words
events        what happened on the host of one rank only
description   one divergence in words
verdict       a fault in one line
divergence    the table
"""

from commtrace.analyze.divergence.divergence import DIVERGENCES, divergences, lines_of, of_fault
from commtrace.analyze.divergence.verdict import verdict_of

__all__ = ["DIVERGENCES", "divergences", "lines_of", "of_fault", "verdict_of"]
