"""One operator call as rules see it: global metadata only, nothing of this rank.

`dispatch` makes it on a cache miss; families read it and return a `Rule`. Tensor arguments are
numbered in the order in which they stand, lists flattened, `out=` arguments left aside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch._ops import OpOverload

from dtensor_core.local.operator import argument_names
from dtensor_core.spec import Spec, TensorMeta


@dataclass(frozen=True, slots=True)
class Call:
    """`args` and `kwargs` hold a `Spec` where the call has a tensor.

    `specs` are those of the numbered tensor arguments, `outputs` the metadata of the tensor
    results in order, both global. `read` collects the names of the arguments that were asked for:
    a number among them is part of what is cached.
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
        """The names of the numbered tensor arguments, that of a list for each of its tensors."""
        given = (*zip(argument_names(self.op), self.args, strict=False), *self.kwargs.items())
        return [name for name, value in given for _ in tensors((value,))]

    def argument(self, name: str, default: Any = None) -> Any:
        """The value of a named argument; `default`, or else the schema's, if it is not given."""
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
        """The numbers among the arguments whose values a key does not have, under their names.

        A decision may rest on their being finite or 0, which a key does have, and on no more.
        """
        given = (*zip(argument_names(self.op), self.args, strict=False), *self.kwargs.items())
        schema, places = self.op._schema.arguments, argument_names(self.op)
        for name, value in given:
            if type(value) in (int, float, complex, bool) and is_value(schema[places[name]]):
                yield name, value

    def number_at(self, position: int) -> int | None:
        """The number of the tensor at a position of `args`, or None if it is no tensor."""
        if position >= len(self.args) or not isinstance(self.args[position], Spec):
            return None
        return sum(1 for _ in tensors(self.args[:position]))


# Types of schema arguments for which a Python number counts by its type only.
_VALUES = ("number", "float", "Tensor", "List[number")


def is_value(argument: Any) -> bool:
    """True for an argument of a schema that takes numbers whose values no layout depends on."""
    return str(argument.type).removeprefix("Optional[").rstrip("]") in _VALUES


def tensors(values: Sequence[Any]) -> Iterator[Spec]:
    """The specs among values, those in lists included, in order."""
    for value in values:
        if isinstance(value, Spec):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(value)
