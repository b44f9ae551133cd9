"""Expectations: every form of a bound, filters, and refusals with their exact text."""

from __future__ import annotations

import pytest

from commtrace.collective_table import KINDS
from commtrace.errors import UsageError
from commtrace.pytest_plugin.expectation import Claim, claims_of, nearest_first


def claim(**arguments) -> Claim:
    (only,) = claims_of(arguments, caller="marker")
    return only


def allowed(most: int = 5, **arguments) -> list[int]:
    """Numbers up to `most` that satisfy the only claim."""
    return [number for number in range(most + 1) if claim(**arguments).holds(number)]


def refusal(**arguments) -> str:
    with pytest.raises(UsageError) as caught:
        claims_of(arguments, caller="marker")
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        (2, [2]),
        ("2", [2]),
        ("=2", [2]),
        ("==2", [2]),
        ("<=2", [0, 1, 2]),
        ("< 2", [0, 1]),
        (">=4", [4, 5]),
        (" > 4 ", [5]),
        ("!=2", [0, 1, 3, 4, 5]),
        ("1..3", [1, 2, 3]),
        ("2..2", [2]),
    ],
)
def test_forms_of_a_number(value, numbers: list[int]) -> None:
    assert allowed(all_reduce=value) == numbers


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_number_its_most_and_its_least(kind: str) -> None:
    assert allowed(**{kind: 1}) == [1]
    assert allowed(**{f"max_{kind}": 1}) == [0, 1]
    assert allowed(**{f"min_{kind}": 4}) == [4, 5]


def test_most_and_least_are_one_claim() -> None:
    assert allowed(max_total=3, min_total=2) == [2, 3]
    assert allowed(max_calls=3, min_calls=2) == [2, 3]


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (1000, 1000, 1000),
        ("1 MB", 1_000_000, 1_000_000),
        ("64 KiB", 65536, 65536),
        ("64kib", 65536, 65536),
        ("<=1.5 kB", 0, 1500),
        ("1 kB..2 kB", 1000, 2000),
    ],
)
def test_forms_of_a_size(value, least: int, most: int) -> None:
    for quantity in ("payload", "wire", "largest"):
        only = claim(**{quantity: value})
        assert only.holds(least)
        assert only.holds(most)
        assert not only.holds(most + 1)
        assert not least or not only.holds(least - 1)


def test_a_bound_of_a_size_by_its_name() -> None:
    assert str(claim(max_payload="1 MB")) == "payload <= 1 MB"
    assert str(claim(min_wire="1 MB")) == "wire >= 1 MB"


def test_none_is_a_total_of_zero() -> None:
    assert claim(none=True) == claim(total=0)


def test_exact_leaves_no_kind_that_is_not_named() -> None:
    claims = {
        each.quantity: each for each in claims_of({"all_reduce": 2, "exact": True}, caller="")
    }
    assert set(claims) == set(KINDS)
    assert str(claims.pop("all_reduce")) == "all_reduce 2"
    assert all(each.holds(0) and not each.holds(1) for each in claims.values())


def test_filters_are_reported() -> None:
    only = claim(total=0, module=["a", "b"], phase="backward", ranks=[0, 1])
    assert str(only) == "total 0 in module a or b and phase backward"
    assert only.ranks == (0, 1)


def test_the_nearest_claim_replaces_its_like_only() -> None:
    near = claims_of({"all_reduce": 3}, caller="")
    far = claims_of({"all_reduce": 2, "total": 2}, caller="")
    elsewhere = claims_of({"all_reduce": 1, "module": "a"}, caller="")
    reported = [str(each) for each in nearest_first([near, far, elsewhere])]
    assert reported == ["all_reduce 3", "total 2", "all_reduce 1 in module a"]


def test_an_unknown_argument_is_refused_with_the_one_that_was_meant() -> None:
    text = refusal(al_reduce=2)
    assert text.startswith(
        "marker has an unknown argument 'al_reduce'\n  why: quantities are all_reduce,"
    )
    assert text.endswith("\n  try: all_reduce")
    assert refusal(max_payloads=2).endswith("\n  try: max_payload")
    assert "try" not in refusal(xyzzy=1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"all_reduce": True},
            "marker: all_reduce=True\n  why: all_reduce takes a number of calls\n"
            '  try: a form like 2, "<=2", ">=1", "1..3"',
        ),
        (
            {"payload": "lots"},
            "marker: payload='lots'\n  why: payload takes a size\n"
            '  try: a form like "64 KiB", "<=1 MB", "1 kB..2 kB"',
        ),
        (
            {"max_total": "<=2"},
            "marker: max_total='<=2'\n  why: max_total takes a number of calls\n"
            "  try: a form like 2",
        ),
        (
            {"total": 0, "phase": "forwards"},
            "marker: phase='forwards'\n  why: a phase is one of forward, backward, recompute, "
            "optimizer, other\n  try: forward",
        ),
        (
            {"total": 0, "module": 3},
            "marker: module=3\n  why: it takes a string, or a list of them",
        ),
        (
            {"total": 0, "step": "1"},
            "marker: step='1'\n  why: it takes a number, or a list of them",
        ),
        (
            {"total": 0, "ranks": "all"},
            "marker: ranks='all'\n"
            '  why: it takes a rank, a list of ranks, or "sum" for all of them together',
        ),
        ({"none": False}, "marker: none=False\n  why: it must be True or omitted"),
        (
            {"module": "a"},
            "marker expects nothing\n  found: only module\n"
            "  why: these select calls but do not bound their number\n"
            "  try: add total=0, all_reduce=2 or max_payload='1 MB', for instance",
        ),
    ],
)
def test_what_says_nothing_is_refused(arguments, text: str) -> None:
    assert refusal(**arguments) == text


@pytest.mark.parametrize("value", [-1, 1.5, None, "3..1", "1..", "x", "<=", "1 kB"])
def test_what_is_no_number_of_calls_is_refused(value) -> None:
    assert "takes a number of calls" in refusal(total=value)
