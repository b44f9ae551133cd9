"""A sharding rule of a call, in terms of factors, and its candidates for a mesh axis.

A factor is a letter for a size that several tensor dimensions may share. A dimension is a tuple of
factors, outermost first; the empty tuple is a broadcast dimension of size 1. Sharding a factor
shards every dimension it is part of; outputs that lack it become partial sums. Families build
rules, `propagate` chooses among their candidates.

Invariant: sharding a factor with prefix product p inside its dimension makes the dimension `Shard`
if p is 1, and otherwise `_StridedShard(split_factor=p)`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dtensor_core.operators.kernels.local_operator import LocalMaker
from dtensor_core.placement import Partial, Placement, Replicate, norm_exponent, shard_in_blocks
from dtensor_core.redistribute.halo_exchange import Exchange
from dtensor_core.redistribute.partial_combine import Merge

Dim = tuple[str, ...]
Operand = tuple[Dim, ...]

# Additive terms of a result, each a product of argument numbers: ((0,), (1, 2)) is 0 + 1 * 2.
Terms = tuple[tuple[int, ...], ...]

# See `ShardingRule.form`.
Form = tuple[Any, ...]

# Partials that an operator lets through, by its algebraic properties (`ShardingRule.algebra`). A
# property that is not listed is the one reduction that passes.
PASSING: dict[str, tuple[str, ...]] = {
    "opaque": (),
    "structural": ("all",),
    "linear": ("sum", "avg"),
    "affine": ("avg",),
    "increasing": ("max", "min"),
    "decreasing": ("max", "min"),
}
# Extremes pass an operator that is monotone in one argument while all others are replicated; a
# decreasing one swaps them.
MONOTONE = ("increasing", "decreasing")
_REPLICATE = Replicate()
_TURNED = {"max": "min", "min": "max"}


@dataclass(frozen=True, slots=True)
class FactorSharding:
    """A factor sharded by an axis, within `num_blocks` equal blocks."""

    factor: str
    num_blocks: int = 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """Placements on an axis, for each tensor argument and each tensor output.

    A candidate with an `exchange` is offered to the axis of that exchange only, and runs it.
    """

    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]
    sharding: FactorSharding | None = None
    exchange: Exchange | Merge | None = None


@dataclass(frozen=True, slots=True)
class ShardingRule:
    """The sharding semantics of a call.

    Attributes:
        inputs: The operands of the tensor arguments, in order.
        outputs: The operands of the tensor results, in order.
        sizes: The size of every factor.
        blocked: The factors that can't be sharded.
        reduce: The reduction over factors that no output has.
        terms: The additive terms of the result, each a product of argument numbers.
        algebra: Words of `PASSING`. With `terms` they define the Partials that pass: one argument
            of each term is Partial, and all others are replicated.
        local: Makes a replacement of the local operator once layouts are known.
        extra: Further candidates.
        offers_replicated: True if everything replicated is a candidate.
        settled: Results that are replicated whichever factor is sharded, because the local operator
            ensures it, or because they are not read.
        unread: Arguments whose values are not read, and which keep their placements when a factor
            is sharded.
    """

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    sizes: Mapping[str, int]
    blocked: frozenset[str] = frozenset()
    reduce: str = "sum"
    terms: Terms = ()
    algebra: str = "opaque"
    local: LocalMaker | None = None
    extra: tuple[Candidate, ...] = ()
    offers_replicated: bool = True
    settled: frozenset[int] = frozenset()
    unread: frozenset[int] = frozenset()

    @property
    def form(self) -> Form:
        """Everything in this rule but sizes and the local operator, as a hashable value."""
        return (
            self.inputs, self.outputs, tuple(self.sizes), self.blocked, self.reduce, self.terms,
            self.algebra, self.extra, self.offers_replicated, self.settled, self.unread,
        )  # fmt: skip

    @property
    def has_sizeless_form(self) -> bool:
        """True if all rules of this form offer the same candidates.

        Sizes matter if dimensions have several factors, which must be sharded evenly.
        """
        return all([len(dim) < 2 for operand in (*self.inputs, *self.outputs) for dim in operand])

    @staticmethod
    def of_form(form: Form, sizes: Sequence[int] = ()) -> ShardingRule:
        """Return a rule of this form, with these sizes of its factors or with 1 for each."""
        inputs, outputs, factors, blocked, reduce, terms, algebra, extra, *rest = form
        named = dict(zip(factors, sizes or (1,) * len(factors), strict=True))
        return ShardingRule(
            inputs, outputs, named, blocked, reduce, terms, algebra, None, extra, *rest
        )


def candidates(
    rule: ShardingRule, sizes: Mapping[str, int], ranks: int, present: Sequence[Placement]
) -> Sequence[Candidate]:
    """Return the candidates of a rule for an axis, in order of preference.

    Args:
        rule: The rule.
        sizes: The sizes of the factors as left by earlier axes.
        ranks: The size of the axis.
        present: The arguments' placements on the axis.
    """
    # Exchanges are made per call and hashed by identity, so a cache would never find one.
    if any([each.exchange is not None for each in rule.extra]):
        return tuple(_candidates(rule, sizes, ranks, present))
    if rule.has_sizeless_form:
        return _candidates_of_form(rule.form, (), 1, tuple(present))
    return _candidates_of_form(rule.form, tuple(sizes.values()), ranks, tuple(present))


@lru_cache(maxsize=16384)
def _candidates_of_form(
    form: Form, sizes: tuple[int, ...], ranks: int, present: Sequence[Placement]
) -> Sequence[Candidate]:
    """Return the candidates of every rule of a form, with `sizes` if they matter."""
    rule = ShardingRule.of_form(form, sizes)
    return tuple(_candidates(rule, rule.sizes, ranks, present))


def _candidates(
    rule: ShardingRule, sizes: Mapping[str, int], ranks: int, present: Sequence[Placement]
) -> Iterator[Candidate]:
    if rule.offers_replicated:
        yield Candidate((_REPLICATE,) * len(rule.inputs), (_REPLICATE,) * len(rule.outputs))
    yield from rule.extra
    operands = (*rule.inputs, *rule.outputs)
    shared = {name for operand in operands for dim in operand if len(dim) > 1 for name in dim}
    partial = Partial(rule.reduce)
    for sharding in _factor_shardings(rule, sizes, present):
        if _fits(sharding, shared, sizes, ranks):
            yield from _sharded(rule, sharding, sizes, present, partial)
    waiting = dict.fromkeys([p.reduce_op for p in present if isinstance(p, Partial)])
    for reduce_op in waiting if rule.terms else ():
        for word in rule.algebra.split():
            if {reduce_op, "all"}.intersection(PASSING.get(word, (word,))):
                yield from _passing(rule, word, reduce_op, present)


def _factor_shardings(
    rule: ShardingRule, sizes: Mapping[str, int], present: Sequence[Placement]
) -> Sequence[FactorSharding]:
    """Return a plain sharding of every factor, and the strided shardings of the arguments."""
    if not sizes:
        return ()
    plain = [FactorSharding(factor) for factor in sizes if factor not in rule.blocked]
    if all(placement.num_blocks == 1 for placement in present):
        return plain
    found = dict.fromkeys(plain)
    for operand, placement in zip(rule.inputs, present, strict=True):
        dim = placement.sharded_dim
        if placement.num_blocks != 1 and dim is not None:
            sharding = _resolve(operand[dim], placement.num_blocks, sizes)
            if sharding is not None and sharding.factor not in rule.blocked:
                found[sharding] = None
    return list(found)


def _resolve(dim: Dim, factor: int, sizes: Mapping[str, int]) -> FactorSharding | None:
    """Return the factor that a split of a dimension into `factor` blocks shards, and its blocks."""
    prefix, found = 1, None
    for name in dim:
        if factor % prefix == 0:
            found = FactorSharding(name, factor // prefix)
        prefix *= sizes[name]
        if not 0 < prefix <= factor:
            break
    return found


def _fits(sharding: FactorSharding, shared: set[str], sizes: Mapping[str, int], ranks: int) -> bool:
    """True if a factor can be sharded: in a flattened dimension only evenly."""
    if sharding.factor not in shared:
        return True
    return sizes[sharding.factor] % (ranks * sharding.num_blocks) == 0


def _sharded_placement(
    operand: Operand, sharding: FactorSharding, sizes: Mapping[str, int]
) -> Placement | None:
    """Return the placement of an operand once a factor is sharded; None if it lacks the factor."""
    for number, dim in enumerate(operand):
        if sharding.factor in dim:
            prefix = sharding.num_blocks
            for name in dim[: dim.index(sharding.factor)]:
                prefix *= sizes[name]
            return shard_in_blocks(number, prefix)
    return None


def _sharded(
    rule: ShardingRule,
    sharding: FactorSharding,
    sizes: Mapping[str, int],
    present: Sequence[Placement],
    partial: Partial,
) -> Iterator[Candidate]:
    """Shard a factor; arguments without it are replicated, or partial if their term lacks it."""
    outputs = [_sharded_placement(operand, sharding, sizes) for operand in rule.outputs]
    inputs = [_sharded_placement(operand, sharding, sizes) for operand in rule.inputs]
    if not any(inputs):
        return
    if not any(outputs):
        for term in rule.terms:
            if not any([inputs[number] for number in term]):
                inputs[term[0]] = partial
    as_it_is = {number: present[number] for number in rule.unread}
    yield Candidate(
        tuple([p or as_it_is.get(number, _REPLICATE) for number, p in enumerate(inputs)]),
        tuple(
            [
                placement or (_REPLICATE if number in rule.settled else partial)
                for number, placement in enumerate(outputs)
            ]
        ),
        sharding,
    )


def through(terms: Terms, word: str) -> Terms:
    """Return the terms that must each have one Partial argument, for a given property."""
    return (tuple(itertools.chain.from_iterable(terms)),) if word in MONOTONE else terms


def _passing(
    rule: ShardingRule, word: str, reduce_op: str, present: Sequence[Placement]
) -> Iterator[Candidate]:
    """Let a Partial through by this property: one argument of every term is Partial.

    A full value never becomes a partial norm, since its sign would be lost.
    """
    partial = Partial(reduce_op)
    result = Partial(_TURNED[reduce_op]) if word == "decreasing" else partial
    given = {number for number, placement in enumerate(present) if placement is partial}
    for chosen in itertools.product(*through(rule.terms, word)):
        if norm_exponent(reduce_op) is not None and not given.issuperset(chosen):
            continue
        inputs = tuple(
            [partial if number in chosen else _REPLICATE for number in range(len(rule.inputs))]
        )
        yield Candidate(inputs, (result,) * len(rule.outputs))


def remaining_sizes(
    rule: ShardingRule, sizes: Mapping[str, int], sharding: FactorSharding | None, ranks: int
) -> Mapping[str, int]:
    """Return the factors' sizes on the longest shard after a sharding."""
    if sharding is None:
        return sizes
    left = dict(sizes)
    left[sharding.factor] = -(-left[sharding.factor] // ranks)
    return left
