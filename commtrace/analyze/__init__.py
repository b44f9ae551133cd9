"""Analyses of a recorded run: `load` a trace, then call an analysis from the `CATALOG`.

frames = load("run.json")
CATALOG["by_kind"].function(frames)

run          what an analysis stands on: tables, parts, calls that belong together
measures     what is derived for each call and step, and the measures that tables share
excerpts     parts of a run that are analysed alone
stored       runs larger than memory
sql          questions in SQL

traffic      how much is communicated, and where
waits        who waits, for whom, and why
overlap      communication behind other work
devices      work of devices and their streams
experts      mixtures of experts
pipelines    why pipeline stages are idle
replay       a run as a graph of work, replayed with changes
values       fingerprints of tensors
gradients    how gradients were reduced
consistency  calls at which ranks disagree
divergence   where ranks parted before a fault
findings     avoidable communication, one rule per file
whatif       the changes that pay
story        what is known of one call
comparisons  several runs, compared with each other
"""

from __future__ import annotations

from commtrace.analyze.catalog import CATALOG, analysis_named
from commtrace.analyze.notices import Notice, notices_of
from commtrace.analyze.opening import load
from commtrace.analyze.run.analysis import Analysis
from commtrace.analyze.run.frame import Frames

__all__ = ["CATALOG", "Analysis", "Frames", "Notice", "analysis_named", "load", "notices_of"]
