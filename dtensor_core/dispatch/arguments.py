"""Walks over the arguments of an operator: values, and lists of values, never deeper.

What `torch.utils._pytree` does for any structure, at a tenth of the time: deciding a call walks
over its arguments several times. Used by `entry`, `lists` and `metadata`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any


def flattened(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Every value, those in lists included, in order."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value


def converted(
    kind: type, convert: Callable[[Any], Any], args: Iterable[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with every value of a kind converted, those in lists included."""

    def one(value: Any) -> Any:
        if isinstance(value, kind):
            return convert(value)
        if isinstance(value, (list, tuple)) and any(isinstance(each, kind) for each in value):
            return [convert(each) if isinstance(each, kind) else each for each in value]
        return value

    return tuple(one(value) for value in args), {name: one(v) for name, v in kwargs.items()}
