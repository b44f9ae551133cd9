"""The notation of rules: the meaning of a line, and its match with the shapes of a call."""

from __future__ import annotations

import pytest

from dtensor_core.errors import NotationError
from dtensor_core.operators.rules.notation import bind, broadcast, parse


def test_a_product_has_one_term() -> None:
    line = parse("m k, k n -> m n")
    assert line.inputs == ((("m",), ("k",)), (("k",), ("n",)))
    assert line.outputs == ((("m",), ("n",)),)
    assert line.terms == ((0, 1),)
    assert line.blocked == frozenset()


def test_a_sum_has_one_entry_per_term() -> None:
    assert parse("m n + m k, k n -> m n").terms == ((0,), (1, 2))


def test_flattened_dims_list_their_factors_outermost_first() -> None:
    line = parse("(b h) d -> b h d")
    assert line.inputs == ((("b", "h"), ("d",)),)
    assert line.outputs == ((("b",), ("h",), ("d",)),)


def test_a_marked_factor_is_blocked_wherever_it_stands() -> None:
    line = parse("b d!, d! -> b d!, b")
    assert line.blocked == {"d"}
    assert line.inputs[1] == (("d",),)
    assert line.outputs[1] == (("b",),)


def test_one_is_a_dim_without_factor_and_nothing_is_a_scalar() -> None:
    line = parse("k, k -> 1,")
    assert line.outputs == (((),), ())


@pytest.mark.parametrize("text", ["m k", "a -> b -> c"])
def test_a_line_without_one_arrow_is_refused(text: str) -> None:
    with pytest.raises(NotationError, match="a rule has one '->'"):
        parse(text)


def test_letters_are_bound_by_the_shapes() -> None:
    line = parse("m n + m k, k n -> m n")
    assert bind(line, [(5,), (6, 4), (4, 5)]) == {"m": 6, "n": 5, "k": 4}
    assert bind(line, [(6, 1), (6, 0), (0, 5)]) == {"m": 6, "n": 5, "k": 0}


def test_an_argument_with_too_many_dims_is_refused() -> None:
    with pytest.raises(NotationError, match=r"shape \(2, 3, 4\) has more dimensions"):
        bind(parse("m k, k -> m"), [(2, 3, 4), (4,)])


def test_broadcast_arguments_align_right_and_lose_spread_dims() -> None:
    operand = (("m",), ("n",))
    sizes = {"m": 6, "n": 5}
    assert broadcast(operand, (5,), sizes) == (("n",),)
    assert broadcast(operand, (6, 1), sizes) == (("m",), ())
    assert broadcast(operand, (6, 5), sizes) == operand
    assert broadcast(operand, (1, 5), {"m": 1, "n": 5}) == operand
