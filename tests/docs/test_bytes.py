"""docs/bytes.md agrees with commtrace/units.py."""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil
from pathlib import Path

import pytest

from commtrace.units import KINDS, busbw_factor, wire_bytes

DOCUMENT = Path(__file__).parents[2] / "docs" / "bytes.md"
PAYLOAD = 997


def documented() -> dict[str, tuple[str, str]]:
    """Parse the document's table: kind -> (bytes that a rank sends, busbw factor)."""
    rows = re.findall(r"^\| (\w+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", DOCUMENT.read_text(), re.M)
    return {kind: (sends, factor) for kind, _, sends, factor in rows if kind != "kind"}


def factor_of(formula: str, n: int) -> Fraction:
    """Evaluate `2(n-1)/n`, `(n-1)/n`, `1/n`, `1`, `0`; an empty formula is 1."""
    match = re.fullmatch(r"(\d*)(\(n-1\))?(/n)?", formula)
    assert match, f"not a formula of this document: {formula!r}"
    number, others, share = match.groups()
    return Fraction(int(number or 1) * (n - 1 if others else 1), n if share else 1)


def sent_bytes(formula: str, n: int, distance: int) -> int:
    """Bytes of PAYLOAD that a rank sends, `distance` places after the root.

    The formula is `2(n-1)/n S`, or one rank's and the others': `root: 0, others: S`.
    """
    if ":" in formula:
        (who, its), (_, rest) = (case.split(": ") for case in formula.split(", "))
        formula = its if distance == {"root": 0, "last": n - 1}[who] else rest
    factor, payload, end = formula.partition("S")
    assert not end
    return ceil(factor_of(factor.strip(), n) * PAYLOAD) if payload else int(formula)


def test_every_kind_is_documented() -> None:
    assert list(documented()) == list(KINDS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
def test_the_documented_formulas_are_those_of_the_code(kind: str, n: int) -> None:
    sends, factor = documented()[kind]
    assert busbw_factor(kind, n) == float(factor_of(factor, n))
    for distance in range(n):
        assert wire_bytes(kind, PAYLOAD, n, distance=distance) == sent_bytes(sends, n, distance)


def test_a_wrong_formula_is_noticed() -> None:
    assert factor_of("(n-1)/n", 4) != busbw_factor("all_reduce", 4)
    assert sent_bytes("(n-1)/n S", 4, 0) != wire_bytes("all_reduce", PAYLOAD, 4)
    assert sent_bytes("last: 0, others: S", 4, 0) != wire_bytes("reduce", PAYLOAD, 4)
