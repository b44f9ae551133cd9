"""Calls that DTensors refuse and plain tensors do not: the errors that the scan expects, and why.

An error of another text or operator is a failure. docs/moving-over.md names these operators to
users.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """An error that every rank raises alike.

    Attributes:
        operators: Names of the OpInfos; empty for any.
        text: A part of the error's text.
        why: The reason, for the scan's line.
    """

    operators: frozenset[str]
    text: str
    why: str


def _of(*operators: str, text: str, why: str) -> Refusal:
    return Refusal(frozenset(operators), text, why)


REFUSALS = (
    _of(
        text="placement changes are not supported",
        why="partial values that the user passes are not reduced in place, as in torch",
    ),
    _of(
        "resize_",
        text="the shape of a written argument cannot change",
        why="an in-place result keeps its shape",
    ),
    _of(
        "addbmm",
        text="doesn't match the broadcast shape",
        why="an in-place result keeps its shape",
    ),
    _of(
        "unravel_index",
        "nn.functional.linear_cross_entropy",
        text="the layout of a plain tensor on the mesh is unknown",
        why="torch's Python creates a plain tensor",
    ),
    _of(
        "to_sparse",
        text="is_coalesced expected sparse coordinate tensor layout but got Strided",
        why="a DTensor has no indices of a sparse tensor, which the second derivative reads",
    ),
)


def why_refused(operator: str, text: str) -> str | None:
    """Return the reason of an expected error, or None if it is not expected."""
    for each in REFUSALS:
        if each.text in text and (not each.operators or operator in each.operators):
            return each.why
    return None
