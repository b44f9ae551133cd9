"""One row of the operator table, and the row made of a line of notation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dtensor_core.rules.call import Call
from dtensor_core.rules.notation import bind, broadcast, parse
from dtensor_core.rules.rule import LocalMaker, Rule


@dataclass(frozen=True, slots=True)
class Row:
    """How an operator's rule is built, and the text that the printed table shows for it.

    `build` returns None for a call of the operator that has no rule.
    """

    build: Callable[[Call], Rule | None]
    text: str


def notation(text: str, *, algebra: str = "linear", local: LocalMaker | None = None) -> Row:
    """A row that is one line of notation; see `rules.notation` for the language."""
    parsed = parse(text)

    def build(call: Call) -> Rule:
        sizes = bind(parsed, call.shapes)
        return Rule(
            inputs=tuple(
                broadcast(operand, shape, sizes)
                for operand, shape in zip(parsed.inputs, call.shapes, strict=True)
            ),
            outputs=parsed.outputs,
            sizes=sizes,
            blocked=parsed.blocked,
            terms=parsed.terms,
            algebra=algebra,
            local=local,
        )

    return Row(build, text)
