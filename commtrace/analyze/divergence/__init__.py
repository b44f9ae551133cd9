"""Divergence of ranks before a fault: the first place at which a rank leaves the common order.

sides         the ranks of a fault, grouped by their calls
sequences     the calls of two ranks side by side, and the last calls that agree
program_text  functions of the program, and the frames around a call
control_flow  the control-flow graph of a function
conditions    the probability that ranks differ in a condition
splits        the statement of a function at which ranks took different branches
explaining    the same over several functions, along the frames of the calls
branching     the text of the branch, from the calls of both ranks
events        host events of one rank only
description   the row of a divergence
verdict       a fault in one line
divergence    the table
"""

from commtrace.analyze.divergence.divergence import (
    DIVERGENCES,
    divergences,
    first_verdict,
    lines_of,
    of_fault,
)
from commtrace.analyze.divergence.verdict import verdict_of

__all__ = ["DIVERGENCES", "divergences", "first_verdict", "lines_of", "of_fault", "verdict_of"]
