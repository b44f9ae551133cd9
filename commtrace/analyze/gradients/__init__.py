"""Audit of reductions: what each gradient is the sum of, and with which factor, from a single run.

A fingerprint is linear, so that the sketch of a reduced gradient shows which ranks' own gradients
are in it and how they were scaled, whatever reduced them: DistributedDataParallel, FSDP, DTensors
or calls by hand.
"""

from commtrace.analyze.gradients.audit import GRADIENTS, gradients
from commtrace.analyze.gradients.faults import WrongReduction, wrong_reductions
from commtrace.analyze.gradients.summary import Line, summary

__all__ = ["GRADIENTS", "Line", "WrongReduction", "gradients", "summary", "wrong_reductions"]
