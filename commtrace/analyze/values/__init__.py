"""Fingerprints of tensors: global tensors, differing replicas, and comparison of runs.

global_values   joins the parts of all ranks into a fingerprint per tensor
replicas        parts that should be equal on several ranks and are not
renamed         layers and tied weights that a stage of a pipeline names differently
in_parts        plain tensors that ranks hold in parts, or a single rank holds
absent_gradients  gradients that are missing from a run
alignment       pairs the tensors of two runs of the same program
flow            flow of data between tensors
own_parts       tensors that ranks compute from parts alone, such as their own losses
local_gradients gradients of the ranks' own backward passes that are right together
losses          losses that are right together
verdicts        which pairs are wrong
tolerance       the difference that rounding explains
noise           parameters whose gradient is rounding errors alone
peers           layouts that the same code has in other layers and steps
kept_layouts    layouts of parameters, which stay the same in all steps
gradient_cause  the wrong gradient behind a norm or a common factor
axes            sizes of mesh axes, to which factors are compared
faults          names the relation between a wrong tensor and the right one
doubts          reasons why a fault may be none, or elsewhere
between         communication between the last tensor that agrees and the wrong tensor
first_wrong     the first wrong tensor, ignoring parts of right tensors
first_fault     its relation to the right tensor, and its evidence
comparison      the first tensor of a run that is wrong, and all that differ
described_pairs pairs with the layouts, dtypes and norms of both runs
divergence      the worst difference of each module and step, and along the program
description     the result in words
"""

from commtrace.analyze.values.comparison import ValueComparison, compare
from commtrace.analyze.values.description import (
    agreement,
    evidence,
    layout_of,
    limits,
    name_of,
    title,
)
from commtrace.analyze.values.first_fault import Fault
from commtrace.analyze.values.global_values import TENSORS, parts, tensors
from commtrace.analyze.values.replicas import REPLICAS, replicas

__all__ = [
    "REPLICAS",
    "TENSORS",
    "Fault",
    "ValueComparison",
    "agreement",
    "compare",
    "evidence",
    "layout_of",
    "limits",
    "name_of",
    "parts",
    "replicas",
    "tensors",
    "title",
]
