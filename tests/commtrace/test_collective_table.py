"""Bytes and bandwidth by kind, compared with the formulas written out by hand."""

from __future__ import annotations

import doctest
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtrace import collective_table
from commtrace.collective_table import KINDS, Share, busbw_factor, wire_bytes


def factor_of(formula: str, n: int) -> Fraction:
    """Evaluate `2(n-1)/n`, `(n-1)/n`, `1/n`, `1` or `0`."""
    match = re.fullmatch(r"(\d*)(\(n-1\))?(/n)?", formula)
    assert match, f"not a formula of the table: {formula!r}"
    number, others, share = match.groups()
    return Fraction(int(number or 1) * (n - 1 if others else 1), n if share else 1)


def share_of(formula: str, n: int, distance: int) -> Fraction:
    """Evaluate a formula, or separate formulas of a root and of others: `root: 0, others: 1`."""
    if ":" in formula:
        (who, its), (_, rest) = (case.split(": ") for case in formula.split(", "))
        formula = its if distance == {"root": 0, "last": n - 1}[who] else rest
    return factor_of(formula, n)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
def test_a_formula_says_what_its_function_computes(kind: str, n: int) -> None:
    for share in (KINDS[kind].sent, KINDS[kind].busbw_factor):
        for distance in range(n):
            assert share.of(n, distance) == share_of(share.formula, n, distance)


def test_a_wrong_formula_is_noticed() -> None:
    twice = Share("(n-1)/n", KINDS["all_reduce"].sent.of)
    assert twice.of(4, 0) != share_of(twice.formula, 4, 0)


def test_the_examples_of_the_docstrings_run() -> None:
    assert doctest.testmod(collective_table).failed == 0


@pytest.mark.parametrize(
    ("kind", "distance", "sent"),
    [
        ("all_reduce", 0, 1500),  # 3 chunks of 250 twice
        ("all_gather", 0, 750),
        ("reduce_scatter", 0, 750),
        ("all_to_all", 0, 750),
        ("broadcast", 0, 1000),  # the root sends, then each forwards, and the last does not
        ("broadcast", 2, 1000),
        ("broadcast", 3, 0),
        ("reduce", 0, 0),
        ("reduce", 1, 1000),
        ("gather", 0, 0),
        ("gather", 3, 250),
        ("scatter", 0, 750),
        ("scatter", 1, 0),
        ("send", 0, 1000),
        ("recv", 0, 0),
        ("barrier", 0, 0),
    ],
)
def test_a_rank_of_four_sends_these_bytes_of_a_thousand(
    kind: str, distance: int, sent: int
) -> None:
    assert wire_bytes(kind, 1000, 4, distance=distance) == sent


def test_bytes_that_do_not_divide_are_rounded_up() -> None:
    assert wire_bytes("all_gather", 10, 3) == 7  # 6.67


@pytest.mark.parametrize(
    ("kind", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("broadcast", 1.0), ("barrier", 0.0)],
)
def test_the_busbw_factor_is_that_of_nccl_tests(kind: str, factor: float) -> None:
    assert busbw_factor(kind, 4) == factor


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 1 << 50))
def test_a_rank_on_its_own_sends_nothing_unless_reported_whom_to_send_to(
    kind: str, size: int
) -> None:
    assert wire_bytes(kind, size, 1) == (size if kind == "send" else 0)


@given(st.integers(0, 1 << 50), st.integers(1, 64))
def test_a_broadcast_arrives_once_at_every_rank_but_the_root(size: int, ranks: int) -> None:
    sent = sum(wire_bytes("broadcast", size, ranks, distance=place) for place in range(ranks))
    assert sent == size * (ranks - 1)
