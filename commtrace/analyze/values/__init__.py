"""Fingerprints of tensors: those of global tensors, replicas that differ, and comparison of runs.

global_values   joins the parts of all ranks into one fingerprint for each tensor
replicas        parts that should be equal on several ranks and are not
alignment       pairs the tensors of two runs of one program
verdicts        which pairs are wrong
tolerance       the difference that rounding explains
noise           parameters whose gradient is rounding errors alone
faults          names the relation between a wrong tensor and the right one
doubts          reasons for which a fault may be none, or elsewhere
between         communication between the last tensor that agrees and the wrong one
comparison      the first tensor of a run that is wrong, and all that differ
described_pairs pairs with the layouts, dtypes and norms of both runs
divergence      the worst difference of each module and step, and along the program
description     the result in words
"""

from commtrace.analyze.values.comparison import Fault, ValueComparison, compare
from commtrace.analyze.values.description import (
    agreement,
    evidence,
    layout_of,
    limits,
    name_of,
    title,
)
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
