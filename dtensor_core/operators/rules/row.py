"""One row of the operator table, and the row made from a line of notation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dtensor_core.operators.kernels.local_operator import LocalMaker
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.notation import bind, broadcast, parse
from dtensor_core.operators.rules.sharding_rule import PASSING, ShardingRule, Terms, through


@dataclass(frozen=True, slots=True)
class Row:
    """Builder of an operator's rule, and its text in the printed table.

    `algebra` and `terms` apply to its rules, unless a call restricts them (a mean of integers is
    rounded). A test over the table compares them with the Partials that pass the rules.

    Attributes:
        build: Makes the rule of a call, or returns None if that call has none.
        text: The notation, or a sentence.
        algebra: Words of `sharding_rule.PASSING`.
        terms: The additive terms.
    """

    build: Callable[[Call], ShardingRule | None]
    text: str
    algebra: str = "opaque"
    terms: Terms = ((0,),)

    @property
    def passing(self) -> str:
        """The Partials that pass, and through which tensor arguments: `sum, avg: 0 + 1 * 2`."""
        found: dict[str, list[str]] = {}
        for word in self.algebra.split():
            terms = through(self.terms, word)
            text = " + ".join(" * ".join(map(str, term)) for term in terms)
            found.setdefault(text, []).extend(PASSING.get(word, (word,)))
        return "; ".join(f"{', '.join(ops)}: {text}" for text, ops in found.items() if ops)


def same_row(names: str, row: Row) -> dict[str, Row]:
    """Return the same row for several operators."""
    return dict.fromkeys(names.split(), row)


def notation(text: str, *, algebra: str = "linear", local: LocalMaker | None = None) -> Row:
    """Make a row from a line of notation; see `operators.rules.notation` for the language."""
    parsed = parse(text)

    def build(call: Call) -> ShardingRule:
        shapes = call.shapes
        sizes = bind(parsed, shapes)
        operands = zip(parsed.inputs, shapes, strict=True)
        return ShardingRule(
            inputs=tuple([broadcast(operand, shape, sizes) for operand, shape in operands]),
            outputs=parsed.outputs,
            sizes=sizes,
            blocked=parsed.blocked,
            terms=parsed.terms,
            algebra=algebra,
            local=local,
        )

    return Row(build, text, algebra, parsed.terms)
