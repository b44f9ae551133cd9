"""An operator call as rules see it: global metadata only, nothing specific to this rank.

`dispatch` makes it on a cache miss; families read it and return a `ShardingRule`. Tensor arguments
are numbered in order, with lists flattened and `out=` arguments left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtensor_core.operators.kernels.local_operator import argument_names
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.torch_internals.dispatcher import OpOverload


@dataclass(frozen=True, slots=True)
class Call:
    """An operator call, with a `Spec` in `args` and `kwargs` for each tensor.

    Attributes:
        op: The operator.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        specs: The specs of the numbered tensor arguments.
        outputs: The global metadata of the tensor results, in order.
        read: The names of the arguments that a rule has read; numbers among them become part of the
            cache key.
    """

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    specs: tuple[Spec, ...]
    outputs: tuple[TensorMeta, ...]
    read: set[str] = field(default_factory=set, compare=False)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Global shapes of the tensor arguments."""
        return [tuple(spec.shape) for spec in self.specs]

    @property
    def names(self) -> list[str]:
        """The names of the numbered tensor arguments, a list's name once per tensor."""
        given = (*zip(argument_names(self.op), self.args, strict=False), *self.kwargs.items())
        return [name for name, value in given for _ in tensors((value,))]

    def argument(self, name: str, default: Any = None) -> Any:
        """Return the value of a named argument, or `default`, or else the schema's default."""
        self.read.add(name)
        position = argument_names(self.op).get(name)
        if position is None:
            return default
        if position < len(self.args):
            return self.args[position]
        if name not in self.kwargs and default is None:
            return self.op._schema.arguments[position].default_value
        return self.kwargs.get(name, default)

    def numbers(self) -> Iterator[tuple[str, complex]]:
        """Yield name and value of the numbers whose values are not part of a key.

        A decision may depend on whether they are finite or 0, which is part of the key, but on no
        more.
        """
        given = (*zip(argument_names(self.op), self.args, strict=False), *self.kwargs.items())
        schema, places = self.op._schema.arguments, argument_names(self.op)
        for name, value in given:
            if type(value) in (int, float, complex, bool) and is_value(schema[places[name]]):
                yield name, value

    def number_at(self, position: int) -> int | None:
        """Return the number of the tensor at a position of `args`, or None if it is no tensor."""
        if position >= len(self.args) or not isinstance(self.args[position], Spec):
            return None
        return sum(1 for _ in tensors(self.args[:position]))


# Schema types for which a Python number is keyed by its type only.
_VALUES = ("number", "float", "Tensor", "List[number")


def is_value(argument: Any) -> bool:
    """True for a schema argument that takes numbers whose values don't affect layouts."""
    return str(argument.type).removeprefix("Optional[").rstrip("]") in _VALUES


def tensors(values: Sequence[Any]) -> Iterator[Spec]:
    """Yield the specs among values in order, those in lists included."""
    for value in values:
        if isinstance(value, Spec):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(value)
