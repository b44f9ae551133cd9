"""Entries: decided calls in the form that `dispatch` can run repeatedly, and the kinds of calls.

`make_entry` makes an entry from the decision of a call not seen before. `dispatch` runs it, and
`results` turns the local results into the call's results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from dtensor_core.dispatch.arguments import Kwargs
from dtensor_core.redistribute.execute import Origin
from dtensor_core.redistribute.plan import Plan
from dtensor_core.spec import Spec

Moves = tuple[tuple[int, Plan, Origin], ...]
Outputs = tuple[Spec | None, ...] | None


@dataclass(frozen=True, slots=True)
class Back:
    """Redistribution of a written copy to the argument of number `whose`."""

    whose: int
    spec: Spec
    plan: Plan
    origin: Origin


@dataclass(frozen=True, slots=True)
class Out:
    """Destination of a result: the tensor `out[index]` of this name, by a plan from its spec.

    A result whose shape depends on data has neither spec nor plan: it is replicated.
    """

    name: str
    index: int | None
    spec: Spec | None
    plan: Plan | None
    origin: Origin

    def of(self, kwargs: Kwargs) -> Any:
        """Return the tensor that the caller gave."""
        return kwargs[self.name] if self.index is None else kwargs[self.name][self.index]


@dataclass(frozen=True, slots=True)
class Missing:
    """A call without a rule: operator, gathered arguments, and their bytes on the first rank."""

    op: str
    gathers: str
    num_bytes: int


class CallKind:
    """Base class of the kinds of calls, with the defaults of their attributes."""

    __slots__ = ()
    backs: ClassVar[Any] = ()
    written: ClassVar[Any] = ()
    alias: ClassVar[Any] = None
    offsets: ClassVar[Any] = ()


@dataclass(slots=True, eq=False)
class PlainCall(CallKind):
    """A call that only returns new tensors.

    Attributes:
        outputs: The specs of the results to wrap. None: all are replicated; an element None: plain.
        is_sizeless: True if the entry only runs the operator and moves nothing, for all sizes of
            a pattern (see `shape_generic_cache`).
    """

    outputs: Outputs
    is_sizeless: bool = False

    def at(self, outputs: tuple[Spec, ...]) -> PlainCall:
        """Return the same call at other sizes."""
        return PlainCall(outputs, is_sizeless=True)


@dataclass(slots=True, eq=False)
class ViewCall(CallKind):
    """A call that returns a view of its first argument.

    Attributes:
        outputs: The specs of the view, or views.
        copied: True if they had to be made as copies, because that needed communication.
        may_copy: True if they are copies on ranks whose part can't be viewed (see
            `operators.kernels.memory_layout`).
        is_sizeless: As in a `PlainCall`.
        offsets: The storage offsets of the results, counted from the argument's; empty: all 0.
    """

    outputs: Outputs
    copied: bool = False
    may_copy: bool = False
    is_sizeless: bool = False
    offsets: tuple[int, ...] = ()

    def at(self, outputs: tuple[Spec, ...]) -> ViewCall:
        """Return the same call at other sizes."""
        return type(self)(outputs, is_sizeless=True)

    @property
    def alias(self) -> Spec | None:
        """The spec of the only result, if that is an alias of the argument on every rank."""
        return self.outputs[0] if self.outputs and not (self.copied or self.may_copy) else None


@dataclass(slots=True, eq=False)
class ViewsCall(ViewCall):
    """A call that returns a list of views of its first argument."""

    @property
    def alias(self) -> None:
        """None: the results are several."""


@dataclass(slots=True, eq=False)
class InPlaceCall(CallKind):
    """A call that writes to its arguments.

    Attributes:
        written: The written arguments that are returned.
        outputs: The specs of results that are new tensors.
        aside: The written arguments that are not returned.
        backs: Redistributions of written copies to the arguments that they belong to.
        returns_nothing: True if the operator has no results.
    """

    written: tuple[int | str, ...]
    outputs: Outputs = None
    aside: tuple[int | str, ...] = ()
    backs: tuple[Back, ...] = ()
    returns_nothing: bool = False


@dataclass(slots=True, eq=False)
class ListCall(InPlaceCall):
    """A call on lists of tensors, decided element by element."""


@dataclass(slots=True, eq=False)
class ReshapingCall(CallKind):
    """A view in place: the first argument takes the result and its spec."""

    spec: Spec


@dataclass(slots=True, eq=False)
class OutCall(CallKind):
    """A call whose results the caller has given tensors for.

    Attributes:
        outs: The destinations of the results.
        written: The names of the arguments that hold them.
    """

    outs: tuple[Out, ...]
    written: tuple[str, ...]


class DecomposedCall(CallKind):
    """A call replaced by other operators: `run` takes the DTensors.

    It is valid for these argument values only.
    """

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Entry:
    """A cached decision, ready to run.

    One class for every kind of call: attributes are read fastest if all objects have the same type.
    Not frozen, although it is never modified: setting frozen fields takes a fifth of a first call.

    Attributes:
        run: The function to run on local tensors.
        kind: The kind of call, with what makes its results.
        moves: The redistributions of tensor arguments, by number.
        is_moved: True if there are any, or redistributions of written tensors.
        single: The spec of the only result, if that is a new tensor.
        place: The position of the only written argument, if it is returned and nothing else is
            to do.
        is_bare: True if the entry only runs the operator in place on local tensors.
        alias: The spec of the only result, if that is an alias of the first argument.
        offset: The storage offset of that result, counted from the argument's.
        may_be_part: True if the single new tensor may be a part of what `run` has computed.
        read: The names of the arguments whose values the decision depends on.
        missing: Describes the data that is gathered for lack of a rule.
    """

    run: Callable[..., Any]
    kind: CallKind
    moves: Moves = ()
    is_moved: bool = False
    single: Spec | None = None
    place: int | None = None
    is_bare: bool = False
    read: frozenset[str] = frozenset()
    missing: Missing | None = None
    alias: Spec | None = None
    offset: int = 0
    may_be_part: bool = False
